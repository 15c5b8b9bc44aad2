import gc
import weakref

import pytest

from gagar_mcore.rollout.garbage import full_collections_deferred


class Knot:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def small_thresholds():
    before = gc.get_threshold()
    gc.set_threshold(10, 1, 1)
    yield
    gc.set_threshold(*before)


def many_objects() -> list[list[int]]:
    return [[] for _ in range(10_000)]


@pytest.mark.usefixtures("small_thresholds")
def test_old_garbage_stays_until_the_end_and_no_longer():
    knot = Knot()
    gc.collect()  # now it is old
    seen = weakref.ref(knot)
    with full_collections_deferred():
        del knot
        assert many_objects() and seen() is not None
    assert seen() is None
    assert gc.get_threshold() == (10, 1, 1)


@pytest.mark.usefixtures("small_thresholds")
def test_young_garbage_does_not_wait():
    with full_collections_deferred():
        knot = Knot()
        seen = weakref.ref(knot)
        del knot
        assert many_objects() and seen() is None
