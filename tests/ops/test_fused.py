import pytest
import torch
import torch.distributed as dist
from loss_cases import random_case

from gagar_mcore.ops import fused, op, reference
from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LOSSES, LossSpec
from gagar_mcore.ops.stats import PolicyStats

SHAPES = {
    "ragged": (6, 9, 1, 0, 4, 700, 5, 0),
    "one token": (1,),
    "two tokens": (2,),
    "nothing": (),
    "only empty": (0, 0),
    "short ones": (3, 1, 2, 30) * 60,
    "tiles": (4500, 2000, 2),
}
LAYOUTS = [(cp, rank, order) for cp in (1, 2, 4) for rank in range(cp) for order in ("zigzag", "contiguous")]
EXTRAS = {
    "mimo": {},
    "ppo": {"tis_cap": 1.1, "kl_coef": 0.1},
    "gspo": {"positive_bounds": (0.9, 1.1), "negative_bounds": (0.9, 1.1)},
    "cispo": {"positive_bounds": (0.0, 1.2), "negative_bounds": (0.5, 1.1), "tis_cap": 1.05},
}


def shaping():
    return Behaviour(torch.tensor([1.3, 0.7], dtype=torch.float64), torch.tensor(0), 2.0)


def call(implementation, case, spec, layout, device, behaviour=None, dtype=torch.float32, ref=None, old=None, group=None):
    """Loss, statistics, gradient at the logits, on the CPU in float64; garbage stands where nothing is trained."""
    case = case.to(torch.float32 if implementation is fused else torch.float64)
    local_dtype = dtype if implementation is fused else torch.float64
    columns = {
        "logprobs": case.local(case.logprobs.to(dtype), layout, fill=torch.nan),
        "old_logprobs": case.local(case.old.to(dtype), layout, fill=torch.inf) if spec.tis_cap or old else None,
        "ref_logprobs": case.local(case.ref.to(dtype), layout, fill=-torch.inf) if spec.kl_coef or ref else None,
    }
    columns = {name: None if c is None else c.to(local_dtype).to(device) for name, c in columns.items()}
    leaf = columns.pop("logprobs").requires_grad_()
    if behaviour is not None:
        behaviour = Behaviour(behaviour.scale.to(device), behaviour.clamped, behaviour.kappa)
    whole = [c.to(device) for c in (case.rollout, case.flags, case.advantages, case.weights)]
    loss, stats = implementation.policy_loss(
        leaf, *whole, layout.to(device), spec, behaviour=behaviour, cp_group=group, **columns
    )
    (3 * loss).backward()
    return loss.detach().cpu(), PolicyStats(stats.sums.cpu(), stats.maxima.cpu()), leaf.grad.double().cpu()


def assert_same(got, want, rtol=2e-5):
    loss, stats, gradient = got
    expected_loss, expected_stats, expected_gradient = want
    torch.testing.assert_close(loss, expected_loss, rtol=rtol, atol=1e-6)
    torch.testing.assert_close(stats.sums, expected_stats.sums, rtol=rtol, atol=1e-5)
    torch.testing.assert_close(stats.maxima, expected_stats.maxima, rtol=rtol, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_equals_the_reference(device, name, lengths):
    case, spec = random_case(lengths), LossSpec(name, **EXTRAS[name])
    layout = TokenLayout.build(case.cu_seqlens, multiple=4, num_local=sum(lengths) + 4 * len(lengths) + 3)
    assert_same(call(fused, case, spec, layout, device), call(reference, case, spec, layout, "cpu"))


@pytest.mark.parametrize(("cp", "rank", "order"), LAYOUTS)
@pytest.mark.parametrize("name", ["mimo", "ppo", "cispo"])
def test_every_context_parallel_part_equals_the_reference(device, name, cp, rank, order):
    case, spec = random_case((57, 3, 1, 0, 2, 128)), LossSpec(name, **EXTRAS[name])
    layout = TokenLayout.build(case.cu_seqlens, cp_size=cp, cp_rank=rank, order=order, multiple=8)
    shaped = shaping()
    assert_same(call(fused, case, spec, layout, device, shaped), call(reference, case, spec, layout, "cpu", shaped))


@pytest.mark.parametrize(("cp", "rank", "order"), LAYOUTS)
def test_every_context_parallel_part_of_gspo_equals_the_reference(device, monkeypatch, cp, rank, order):
    """Its group is played by adding up what the ranks counted."""
    case, spec = random_case((57, 3, 1, 0, 2, 128)), LossSpec("gspo", **EXTRAS["gspo"])
    layouts = [TokenLayout.build(case.cu_seqlens, cp_size=cp, cp_rank=r, order=order, multiple=8) for r in range(cp)]
    single = case.to(torch.float32)
    columns = [(single.local(single.logprobs, layout), None, single.rollout) for layout in layouts]
    count = op.sequence_counts
    moved = [[None if c is None else c.to(device) for c in column] for column in columns]
    flags = case.flags.to(device)
    total = sum(count(flags, *c, *fused.place(layout.to(device))) for c, layout in zip(moved, layouts, strict=True))
    monkeypatch.setattr(dist, "all_reduce", lambda counts, group: counts.copy_(total))

    layout = layouts[rank]
    assert_same(
        call(fused, case, spec, layout, device, group="played"), call(reference, case, spec, layout, "cpu", group="played")
    )
    uncut = TokenLayout.build(case.cu_seqlens)
    whole = op.sequence_counts(case.flags, single.local(single.logprobs, uncut), None, single.rollout, *fused.place(uncut))
    torch.testing.assert_close(total.cpu(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("ref", [False, True], ids=["", "reference"])
def test_bfloat16_log_probs(device, name, ref):
    case, spec = random_case((300, 5)), LossSpec(name, **EXTRAS[name])
    layout = TokenLayout.build(case.cu_seqlens)
    got = call(fused, case, spec, layout, device, dtype=torch.bfloat16, ref=ref)
    want = call(reference, case, spec, layout, "cpu", dtype=torch.bfloat16, ref=ref)
    assert_same((*got[:2], got[2]), (*want[:2], want[2].to(torch.bfloat16).double()), rtol=1e-2)
    torch.testing.assert_close(got[1].sums, want[1].sums, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "old"),
    [
        (LossSpec("ppo", dual_clip=None, tis_cap=1.1), True),
        (LossSpec("ppo"), True),
        (LossSpec("ppo"), False),
        (LossSpec("ppo", dual_clip=1.2), True),
        (LossSpec("ppo", dual_clip=1.2), False),
        (LossSpec("ppo", dual_clip=None), False),
    ],
    ids=str,
)
def test_switches_act_one_by_one(device, spec, old):
    case = random_case((400, 30, 200))
    case.logprobs[::3] += 1.5
    case.advantages[:] = torch.tensor([-0.5, 0.7, -0.9])
    layout = TokenLayout.build(case.cu_seqlens)
    got, want = (call(m, case, spec, layout, d, old=old) for m, d in ((fused, device), (reference, "cpu")))
    assert_same(got, want)


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_values_end_alike(device, name):
    case, spec = random_case((60, 30)), LossSpec(name, **EXTRAS[name] | {"kl_coef": 0.0})
    case.flags[:] = 1
    case.advantages[:] = torch.tensor([-1e-50, 0.7])
    case.logprobs[5], case.rollout[9], case.old[70] = -200.0, -300.0, -150.0
    case.ref[12] = -torch.inf
    layout = TokenLayout.build(case.cu_seqlens)
    got, want = (call(m, case, spec, layout, d, ref=True) for m, d in ((fused, device), (reference, "cpu")))
    assert got[0].isfinite() and got[2].isfinite().all()
    assert_same(
        (got[0], PolicyStats(got[1].sums[:5], got[1].maxima), got[2]),
        (want[0], PolicyStats(want[1].sums[:5], want[1].maxima), want[2]),
    )


def test_views_that_no_vector_load_could_read(device):
    case, spec = random_case((5000,)).to(torch.float32), LossSpec("mimo")
    layout = TokenLayout.build(case.cu_seqlens)
    columns = [case.local(case.logprobs, layout), case.rollout, case.flags]
    shifted = [torch.cat([c.new_zeros(1), c]).to(device)[1:] for c in columns]
    assert any(c.data_ptr() % 16 for c in shifted)
    rest = (case.advantages.to(device), case.weights.to(device), layout.to(device), spec)
    loss, stats = fused.policy_loss(*shifted, *rest)
    expected, expected_stats = fused.policy_loss(*(c.to(device) for c in columns), *rest)

    assert loss == expected and torch.equal(stats.sums, expected_stats.sums)


def test_equal_inputs_give_equal_bits_whatever_the_threads(device):
    case, spec = random_case((20000, 7, 3000)), LossSpec("gspo", **EXTRAS["gspo"])
    layout = TokenLayout.build(case.cu_seqlens)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(call(fused, case, spec, layout, device))
    torch.set_num_threads(threads)

    for loss, stats, gradient in results[1:]:
        assert loss == results[0][0] and torch.equal(gradient, results[0][2])
        assert torch.equal(stats.sums, results[0][1].sums)


def test_nothing_leaks_from_tokens_that_are_not_trained(device):
    case, spec = random_case((50, 20)), LossSpec("ppo", **EXTRAS["ppo"])
    layout = TokenLayout.build(case.cu_seqlens)
    clean = call(fused, case, spec, layout, device)
    masked = (case.flags & 1) == 0
    for column in (case.logprobs, case.rollout, case.old, case.ref):
        column[masked] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30], dtype=torch.float64).repeat(70)[: masked.sum()]
    dirty = call(fused, case, spec, layout, device)

    assert dirty[0] == clean[0] and torch.equal(dirty[2], clean[2])
    assert torch.equal(dirty[1].sums, clean[1].sums) and torch.equal(dirty[1].maxima, clean[1].maxima)


def test_a_trained_token_that_is_no_number_is_not_hidden(device):
    case = random_case((50, 20), trained=1.0)
    case.logprobs[5] = torch.nan
    loss, _, _ = call(fused, case, LossSpec("mimo"), TokenLayout.build(case.cu_seqlens), device)
    assert loss.isnan()


@pytest.mark.parametrize("spec", [LossSpec("ppo", dual_clip=None, kl_coef=0.1), LossSpec("gspo", kl_coef=0.1)], ids=str)
def test_held_ratios_have_no_slope(device, spec):
    case = random_case((40, 30), trained=1.0)
    case.advantages[:] = torch.tensor([-0.5, -0.7])
    case.logprobs[:40] += 90
    case.ref[50], case.ref[60] = case.logprobs[50] + 100, case.logprobs[60] - 100
    layout = TokenLayout.build(case.cu_seqlens)
    got, want = (call(m, case, spec, layout, d) for m, d in ((fused, device), (reference, "cpu")))
    torch.testing.assert_close(got[2], want[2], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_far_apart_policies_stay_finite(device, name):
    case, spec = random_case((50, 20)), LossSpec(name, **EXTRAS[name] | {"kl_coef": 0.0})
    case.logprobs[3::7] -= 500
    case.old[1::7] -= 500
    layout = TokenLayout.build(case.cu_seqlens)
    got, want = (call(m, case, spec, layout, d) for m, d in ((fused, device), (reference, "cpu")))
    assert all(result[0].isfinite() and result[2].isfinite().all() and result[1].sums.isfinite().all() for result in (got, want))
    torch.testing.assert_close(got[2], want[2], rtol=2e-5, atol=1e-7)


def test_k3_is_precise_for_policies_close_together(device):
    case, spec = random_case((2000,), trained=1.0), LossSpec("ppo", kl_coef=1.0)
    case.ref[:] = case.logprobs + 1e-3
    layout = TokenLayout.build(case.cu_seqlens)
    _, stats, _ = call(fused, case, spec, layout, device)
    case.logprobs[:] = case.logprobs.float()
    gap = case.ref.float().double() - case.logprobs
    expected = (gap.expm1() - gap)[1:].sum()
    torch.testing.assert_close(stats.sums[7], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("behaviour", [None, shaping()], ids=["plain", "shaped"])
@pytest.mark.parametrize(("cp", "rank", "order"), LAYOUTS[-4:])
def test_token_advantages_equal_the_reference(device, cp, rank, order, behaviour):
    case = random_case((57, 3, 1, 0, 2, 128))
    layout = TokenLayout.build(case.cu_seqlens, cp_size=cp, cp_rank=rank, order=order)
    on_device = behaviour and Behaviour(behaviour.scale.to(device), behaviour.clamped, behaviour.kappa)
    got = fused.token_advantages(case.flags.to(device), case.advantages.to(device), layout.to(device), on_device)
    torch.testing.assert_close(got.cpu(), reference.token_advantages(case.flags, case.advantages, layout, behaviour))
    assert got.count_nonzero() > 0


@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("cp", "rank", "order"), [(1, 0, "zigzag"), (2, 1, "zigzag"), (2, 1, "contiguous")])
def test_sequence_counts_equal_the_reference(device, lengths, cp, rank, order):
    case = random_case(lengths)
    layout = TokenLayout.build(case.cu_seqlens, cp_size=cp, cp_rank=rank, order=order)
    got = fused.sequence_counts(case.flags.to(device), layout.to(device))
    torch.testing.assert_close(got.cpu(), reference.sequence_counts(case.flags, layout), rtol=0, atol=0)


def test_4096_sequences(device, request):
    if "kernels" in request.node.callspec.params["device"]:
        pytest.skip("too many CUDA blocks for CPU threads")
    lengths = tuple(1 + (7 * i) % 13 for i in range(4096))
    case, spec = random_case(lengths), LossSpec("gspo", **EXTRAS["gspo"])
    layout = TokenLayout.build(case.cu_seqlens)
    assert_same(call(fused, case, spec, layout, device), call(reference, case, spec, layout, "cpu"))
