"""When the interpreter looks through all objects for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30


@contextmanager
def full_collections_deferred() -> Iterator[None]:
    """Within, only young objects are looked through, and all of them once at the end if that was due meanwhile. With 50,000 live
    sessions it would hold up the event loop for a second each time, and find next to nothing: reference counts free what a
    session leaves."""
    youngest, young, old = gc.get_threshold()
    gc.set_threshold(youngest, young, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(youngest, young, old)
        if gc.get_count()[2] > old > 0:
            gc.collect()
