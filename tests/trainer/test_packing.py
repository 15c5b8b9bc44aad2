import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.trainer.packing import plan_microbatches

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


@given(lengths=LENGTHS, budget=st.integers(1, 100), dp=st.integers(1, 4))
def test_every_sequence_is_planned_once_and_all_ranks_run_as_many_microbatches(lengths, budget, dp):
    plan = plan_microbatches(lengths, budget, dp)

    assert sorted(i for rank in plan for part in rank for i in part) == list(range(len(lengths)))
    assert len(plan) == dp
    assert len({len(rank) for rank in plan}) == 1


@given(lengths=LENGTHS, budget=st.integers(1, 100))
def test_only_a_sequence_alone_exceeds_the_budget(lengths, budget):
    for part in plan_microbatches(lengths, budget, 1)[0]:
        assert len(part) == 1 or sum(lengths[i] for i in part) <= budget


@pytest.mark.parametrize(("budget", "expected"), [(10, [[1, 2], [0, 3]]), (6, [[1], [2], [0, 3]])])
def test_like_lengths_share_a_microbatch(budget, expected):
    assert plan_microbatches([3, 6, 4, 2], budget, 1)[0] == expected
