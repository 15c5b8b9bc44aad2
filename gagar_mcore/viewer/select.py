"""Which groups a page shows: those of the last steps, a sample of the earlier ones, and never more than fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.records.types import Group
from gagar_mcore.viewer.load import RunReader

LATEST_STEPS = 2
GROUPS_OF_A_LATEST_STEP = 24
EARLIER_STEPS = 16
SHOWN_FIRST = 4


@dataclass(frozen=True, slots=True)
class Selection:
    """Groups in order of preference, and how many there were to choose from."""

    groups: list[Group]
    total: int


def select_groups(reader: RunReader) -> Selection:
    """Some of the last step, then a kept group of each of some earlier steps, evenly spaced, the first step among them; then
    the rest of the last steps. Within a step kept groups come before dropped ones."""
    paths = reader.group_paths()
    steps = sorted(paths, reverse=True)
    latest = [group for step in steps[:LATEST_STEPS] for group in _of_latest(reader, paths[step])]
    earlier = [group for step in evenly_spaced(steps[LATEST_STEPS:], EARLIER_STEPS) for group in _first_kept(reader, paths[step])]
    return Selection([*latest[:SHOWN_FIRST], *earlier, *latest[SHOWN_FIRST:]], sum(map(len, paths.values())))


def evenly_spaced(items: list[int], count: int) -> list[int]:
    """At most `count` items, the ends among them."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _of_latest(reader: RunReader, paths: list[Path]) -> list[Group]:
    groups = list(_readable(reader, paths))
    return sorted(groups, key=lambda g: (not g.credit.kept, g.id))[:GROUPS_OF_A_LATEST_STEP]


def _first_kept(reader: RunReader, paths: list[Path]) -> list[Group]:
    return next(([group] for group in _readable(reader, paths) if group.credit.kept), [])


def _readable(reader: RunReader, paths: list[Path]) -> Iterator[Group]:
    return (group for path in paths if (group := reader.group(path)))
