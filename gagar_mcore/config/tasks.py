"""Recipe section of the tasks: one source, or a mix of several."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import MOST, Count, Positive, Temperature


class SourceSection(Section):
    """Where tasks come from. `generated`: bug-repair tasks made from `seed`; `harbor`: task directories below `path`;
    `questions`: tasks that are answered with a text, made from `seed`, or read from the file of JSON lines that `path` names. Of
    those with a path, the last `heldout_count` by id are held back."""

    source: Literal["generated", "harbor", "questions"] = "generated"
    path: str | None = None
    count: Positive = 256
    seed: int = 1
    heldout_count: Count = 64
    heldout_seed: int = 90001


class MixedSource(SourceSection):
    """One source of a mix. `weight` is its share of the groups, beside the weights of the others; at most `quota` of its groups
    are at work at once (None: any number); sources of a higher `priority` go first. Temperature and limits are the rollout
    section's where they are None."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    weight: Annotated[float, Field(gt=0, le=MOST)] = 1.0
    quota: Positive | None = None
    priority: Annotated[int, Field(ge=-MOST, le=MOST)] = 0
    temperature: Temperature | None = None
    max_turns: Positive | None = None
    max_new_tokens: Positive | None = None
    max_context: Positive | None = None


class TasksSection(SourceSection):
    """The tasks of a run: those of the fields here, or of every source in `mix` where that has any."""

    mix: tuple[MixedSource, ...] = ()

    @property
    def sources(self) -> dict[str, SourceSection]:
        """By name, "" where there is no mix."""
        return {source.name: source for source in self.mix} or {"": self}

    @property
    def heldout(self) -> int:
        """Tasks to evaluate on, of all sources."""
        return sum(source.heldout_count for source in self.sources.values())

    def contradictions(self) -> Iterator[str]:
        for name, source in self.sources.items():
            where = f"tasks.mix.{name}" if name else "tasks"
            if source.source == "generated" and source.path is not None:
                yield f"{where}.path: has no effect where tasks are generated; set {where}.source=harbor or leave it out"
            if source.source == "harbor" and source.path is None:
                yield f"{where}.path: required where tasks are loaded; name a directory that holds Harbor tasks"
        unheeded = [name for name, field in SourceSection.model_fields.items() if getattr(self, name) != field.default]
        if self.mix and unheeded:
            yield f"tasks.{', tasks.'.join(unheeded)}: has no effect beside tasks.mix; set it in the sources there"
        for name, times in Counter(source.name for source in self.mix).items():
            if times > 1:
                yield f"tasks.mix: {times} sources are called {name}; name each another way"
