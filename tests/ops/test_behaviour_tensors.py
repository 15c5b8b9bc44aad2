import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import random_case

from gagar_mcore.credit.behaviour import BehaviourParams, behaviour_scale, behaviour_sums
from gagar_mcore.ops import fused
from gagar_mcore.ops.behaviour import advantage_sums, behaviour_of
from gagar_mcore.ops.layout import TokenLayout

SEQUENCE = st.tuples(st.floats(-2, 2), st.integers(0, 50), st.integers(0, 50)).map(lambda s: (s[0], max(s[1:]), min(s[1:])))


@given(st.lists(SEQUENCE, max_size=8), st.sampled_from([(2.0, 0.5, 2.0), (0.0, 0.9, 1.1)]))
def test_tensors_and_numbers_give_the_same_scales(sequences, constants):
    params = BehaviourParams(*constants)
    expected = behaviour_scale(*behaviour_sums(sequences), params=params)
    rows = torch.tensor(sequences, dtype=torch.float64).reshape(-1, 3)
    behaviour = behaviour_of(advantage_sums(rows[:, 1:], rows[:, 0]), params.kappa, params.low, params.high)

    assert behaviour.scale.tolist() == pytest.approx([expected.alpha, expected.beta], rel=1e-9)
    assert int(behaviour.clamped) == expected.clamped


def test_shaping_keeps_the_totals_of_the_step():
    case = random_case((40, 30, 20, 50), flagged=0.1)
    case.advantages[:] = torch.tensor([0.5, -0.25, 0.125, -0.75])
    layout = TokenLayout.build(case.cu_seqlens)
    sums = advantage_sums(fused.sequence_counts(case.flags, layout), case.advantages)
    behaviour = behaviour_of(sums, kappa=2.0, low=0.01, high=100.0)
    plain = fused.token_advantages(case.flags, case.advantages, layout)
    shaped = fused.token_advantages(case.flags, case.advantages, layout, behaviour)

    assert int(behaviour.clamped) == 0 and not torch.equal(shaped, plain)
    for sign in (plain > 0, plain < 0):
        torch.testing.assert_close(shaped[sign].double().sum(), plain[sign].double().sum(), rtol=1e-6, atol=0)
