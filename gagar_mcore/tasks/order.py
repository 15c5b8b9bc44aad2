"""The order in which tasks are visited: a fresh permutation each pass, a function of seed and position alone."""

from collections.abc import Sequence

from gagar_mcore.randomness import numpy_rng
from gagar_mcore.tasks.question import Problem


class TaskOrder:
    """The order of one source."""

    def __init__(self, tasks: Sequence[Problem], seed: int) -> None:
        if not tasks:
            raise ValueError("no tasks to train on")
        self._tasks = list(tasks)
        self._seed = seed
        self._passes: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Tasks of a pass."""
        return len(self._tasks)

    def find(self, key: str) -> Problem | None:
        return next((task for task in self._tasks if task.key == key), None)

    def task(self, position: int) -> Problem:
        number, offset = divmod(position, len(self._tasks))
        if number not in self._passes:
            self._passes[number] = numpy_rng(self._seed, "task_order", number).permutation(len(self._tasks)).tolist()
        return self._tasks[self._passes[number][offset]]
