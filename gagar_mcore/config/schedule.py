"""Recipe section of the scheduler."""

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import Positive


class ScheduleSection(Section):
    """`lookahead`: of so many tasks of a source that come next, the one that is likeliest to have mixed outcomes, by what the run
    knows of it, is drawn first; 1 draws in order, as deterministic runs do. A task whose groups the infrastructure fails
    `task_failures` times one after the other is set aside. Failures of `outage_tasks` different tasks one after the other are an
    outage of sandboxes or engine: nothing but trials is begun until one ends well."""

    lookahead: Positive = 32
    task_failures: Positive = 3
    outage_tasks: Positive = 3
