"""Names in a message of one line."""

from collections.abc import Sequence


def some_of(names: Sequence[str], most: int) -> str:
    """The first `most` of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
