import pytest
import torch
from loss_cases import by_formula, random_case

from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.reference import policy_loss
from gagar_mcore.ops.spec import LossSpec
from gagar_mcore.ops.stats import SUMS, PolicyStats

LENGTHS = (6, 9, 1, 0, 4, 7, 5)
SHAPING = Behaviour(torch.tensor([1.3, 0.7], dtype=torch.float64), torch.tensor(0), 2.0)
SPECS = [
    LossSpec("mimo", (0.5, 2.0), (0.8, 1.2)),
    LossSpec("ppo", (0.8, 1.3), (0.7, 1.2), dual_clip=1.5, tis_cap=1.1),
    LossSpec("ppo", dual_clip=None, kl_coef=0.1),
    LossSpec("gspo", (0.9, 1.1), (0.8, 1.2), tis_cap=1.0),
    LossSpec("cispo", (0.0, 1.2), (0.9, 1.5), tis_cap=1.2, kl_coef=0.02),
]


def run(case, spec, layout, **extra):
    """Loss, statistics and the gradient as it lies at the logits."""
    leaf = case.local(case.logprobs, layout).requires_grad_()
    local = {name: case.local(column, layout) for name, column in extra.items() if name.endswith("logprobs")}
    loss, stats = policy_loss(leaf, case.rollout, case.flags, case.advantages, case.weights, layout, spec, **{**extra, **local})
    loss.backward()
    return loss, stats, leaf.grad


@pytest.mark.parametrize("behaviour", [None, SHAPING], ids=["plain", "shaped"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_loss_gradient_and_sums_follow_the_formula(spec, behaviour):
    case, layout = random_case(LENGTHS), TokenLayout.build(random_case(LENGTHS).cu_seqlens, multiple=4, num_local=60)
    old, ref = spec.tis_cap is not None, spec.kl_coef > 0
    extra = ({"old_logprobs": case.old} if old else {}) | ({"ref_logprobs": case.ref} if ref else {})
    loss, stats, gradient = run(case, spec, layout, behaviour=behaviour, **extra)
    expected, slopes, sums = by_formula(case, spec, old=old, ref=ref, behaviour=behaviour)

    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, case.local(slopes, layout), rtol=1e-10, atol=1e-15)
    got = dict(zip(SUMS, stats.sums.tolist(), strict=True))
    assert {name: got[name] for name in sums} == pytest.approx(sums, rel=1e-10)
    if spec.name != "gspo":
        assert sums["masked_positive"] > 0 and sums["masked_negative"] > 0  # the bounds bite on both sides


def test_metrics_speak_of_trained_tokens():
    case = random_case(LENGTHS)
    layout = TokenLayout.build(case.cu_seqlens)
    _, stats, _ = run(case, LossSpec("mimo", (0.5, 2.0), (0.8, 1.2)), layout)
    token = layout.predicted_tokens()
    trained = token[(token >= 0) & ((case.flags[token] & 1) > 0)]
    difference = (case.logprobs - case.rollout)[trained]
    metrics = stats.metrics()

    assert metrics["trained_tokens"] == len(trained)
    assert metrics["ratio_mean"] == pytest.approx(difference.exp().mean().item())
    assert metrics["ratio_max"] == pytest.approx(difference.exp().max().item())
    assert metrics["rollout_logprob_abs_diff"] == pytest.approx(difference.abs().mean().item())
    assert metrics["rollout_logprob_max_diff"] == pytest.approx(difference.abs().max().item())
    assert metrics["rollout_kl"] == pytest.approx(-difference.mean().item())
    assert metrics["masked_share"] == metrics["masked_positive_share"] + metrics["masked_negative_share"]


def test_a_part_without_trained_tokens_is_zero_and_differentiable():
    case = random_case(LENGTHS, trained=0.0)
    loss, stats, gradient = run(case, LossSpec(), TokenLayout.build(case.cu_seqlens))

    assert loss.item() == 0
    assert not gradient.any()
    assert stats.metrics() == PolicyStats(torch.zeros(len(SUMS)), torch.zeros(2)).metrics()
