import logging

import pytest
import torch
from loss_cases import random_case

from gagar_mcore.ops import fused, library, op, reference
from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.build import BuildError
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LossSpec

CASE = random_case((40, 9, 1, 3)).to(torch.float32)
LAYOUT = TokenLayout.build(CASE.cu_seqlens, multiple=2)
COLUMNS = (CASE.rollout, CASE.flags, CASE.advantages, CASE.weights)
SHAPING = Behaviour(torch.tensor([1.3, 0.7], dtype=torch.float64), torch.tensor(0), 2.0)
BAD_BOUNDS = {
    "not from 0": ([1, 40, 53], [0, 40, 54]),
    "not to the end": ([0, 40, 52], [0, 40, 54]),
    "below 0": ([0, -60, 53], [0, 20, 54]),
    "falling": ([0, 53, 53], [0, 54, 40]),
    "beyond the positions": ([0, 40, 53], [0, 40, 56]),
    "part too short": ([0, 40, 53], [0, 30, 54]),
    "empty part of a sequence": ([0, 1, 53], [0, 0, 54]),
}


def logprobs(dtype=torch.float32):
    return CASE.local(CASE.logprobs, LAYOUT).to(dtype)


def loss_of(leaf, spec=LossSpec(), behaviour=SHAPING):  # noqa: B008
    loss, stats = fused.policy_loss(leaf, *COLUMNS, LAYOUT, spec, behaviour=behaviour)
    return loss, stats.sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck_accepts_the_operators(dtype):
    place = fused.place(LAYOUT)
    leaf = logprobs(dtype).requires_grad_()
    constants = fused.constants(LossSpec("cispo"), SHAPING)
    counts = torch.ops.gagar.sequence_counts(CASE.flags, leaf.detach(), None, CASE.rollout, *place)
    step = (leaf, CASE.rollout, CASE.flags, None, leaf.detach().clone(), CASE.advantages, CASE.weights, counts, SHAPING.scale)
    torch.library.opcheck(torch.ops.gagar.policy_step, (*step, *place, "gspo", constants))
    torch.library.opcheck(torch.ops.gagar.sequence_counts, (CASE.flags, leaf.detach(), None, CASE.rollout, *place))
    torch.library.opcheck(torch.ops.gagar.token_advantages, (CASE.flags, CASE.advantages, None, *place, 2.0))


@pytest.mark.parametrize("name", ["mimo", "gspo"])
def test_compiled_code_gives_the_same_numbers(name):
    eager, compiled = logprobs().requires_grad_(), logprobs().requires_grad_()
    loss, sums = loss_of(eager, LossSpec(name))
    compiled_loss, compiled_sums = torch.compile(loss_of, backend="aot_eager", fullgraph=True)(compiled, LossSpec(name))
    loss.backward()
    compiled_loss.backward()

    assert compiled_loss == loss and torch.equal(compiled_sums, sums)
    assert torch.equal(compiled.grad, eager.grad)


@pytest.mark.parametrize("bounds", BAD_BOUNDS.values(), ids=BAD_BOUNDS)
def test_bounds_that_contradict_each_other_are_refused(bounds):
    whole, local = map(torch.tensor, bounds)
    with pytest.raises(ValueError, match="cu_"):
        TokenLayout(whole, local, 53, 54)
    with pytest.raises(ValueError, match="contradict"):
        op.token_advantages(CASE.flags, CASE.advantages[:2], None, whole, local, 54, 1, 0, False, 0.0)


@pytest.mark.parametrize("bounds", BAD_BOUNDS.values(), ids=BAD_BOUNDS)
def test_a_device_that_does_not_tell_gives_no_number_for_them(bounds, cuda_kernels, monkeypatch):
    monkeypatch.setattr(op, "library", lambda device: cuda_kernels)
    whole, local = map(torch.tensor, bounds)
    leaf = torch.zeros(54, requires_grad=True)
    columns = (leaf, CASE.rollout, CASE.flags, None, None, CASE.advantages[:2], CASE.weights[:2], None, None)
    loss, _, _, _ = op.policy_step(*columns, whole, local, 54, 1, 0, False, "mimo", fused.constants(LossSpec(), None))
    loss.backward()

    assert loss.isnan() and leaf.grad.isnan().all()
    place = (whole, local, 54, 1, 0, False)
    assert op.token_advantages(CASE.flags, CASE.advantages[:2], None, *place, 0.0).isnan().any()
    assert op.sequence_counts(CASE.flags, None, None, None, *place).isnan().any()


def test_there_is_no_second_derivative():
    leaf = logprobs().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(leaf)[0], leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


WRONG = {
    "a shape": ({"logprobs": logprobs()[:-1]}, r"logprobs: .*\[num_local\] = \[56\], got \[55\]"),
    "two dimensions": ({"logprobs": logprobs()[None]}, "logprobs: must have the shape"),
    "a dtype": ({"logprobs": logprobs(torch.float16)}, "logprobs: must be torch.float32 or torch.bfloat16, got torch.float16"),
    "another dtype": ({"ref_logprobs": logprobs(torch.bfloat16)}, "ref_logprobs: must have the dtype of logprobs"),
    "a stride": ({"logprobs": logprobs().repeat_interleave(2)[::2]}, "logprobs: must be contiguous"),
    "flags of booleans": ({"flags": CASE.flags.bool()}, "flags: must be torch.uint8"),
    "too many flags": ({"flags": torch.cat([CASE.flags, CASE.flags])}, r"flags: .*\[num_tokens\] = \[53\]"),
    "advantages of tokens": ({"advantages": CASE.rollout.double()}, r"advantages: .*\[S\] = \[4\]"),
    "float32 weights": ({"weights": CASE.weights.float()}, "weights: must be torch.float64"),
    "a device": ({"logprobs": logprobs().to("meta")}, "logprobs: is on meta, but its company on cpu"),
    "a scale of another type": (
        {"behaviour": Behaviour(SHAPING.scale.float(), SHAPING.clamped, 2.0)},
        "behaviour.scale: must be torch.float64",
    ),
    "a scale too short": ({"behaviour": Behaviour(SHAPING.scale[:1], SHAPING.clamped, 2.0)}, r"behaviour.scale: .*\[2\]"),
    "old for mimo": ({"old_logprobs": logprobs()}, "old_logprobs: mimo"),
    "no old": ({"spec": LossSpec("ppo", tis_cap=2.0)}, "old_logprobs: tis_cap"),
    "no reference": ({"spec": LossSpec("ppo", kl_coef=0.1)}, "ref_logprobs: kl_coef"),
    "gspo alone": (
        {"spec": LossSpec("gspo"), "layout": TokenLayout.build(CASE.cu_seqlens, cp_size=2, num_local=56)},
        "cp_group: gspo",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_by_name(change, message):
    arguments = {
        "logprobs": logprobs(),
        "rollout_logprobs": CASE.rollout,
        "flags": CASE.flags,
        "advantages": CASE.advantages,
        "weights": CASE.weights,
        "layout": LAYOUT,
        "spec": LossSpec(),
    }
    with pytest.raises(ValueError, match=message):
        fused.policy_loss(**(arguments | change))


def test_without_a_compiler_the_reference_runs_with_one_warning(monkeypatch, caplog):
    def refuse(device):
        raise BuildError("no c++ is on the PATH")

    monkeypatch.setattr(library, "library_path", refuse)
    library.library.cache_clear()
    with caplog.at_level(logging.WARNING):
        slow, stats = fused.policy_loss(logprobs(), *COLUMNS, LAYOUT, LossSpec())
        fused.policy_loss(logprobs(), *COLUMNS, LAYOUT, LossSpec())
    library.library.cache_clear()
    expected, expected_stats = reference.policy_loss(logprobs(), *COLUMNS, LAYOUT, LossSpec())

    assert slow == expected and torch.equal(stats.sums, expected_stats.sums)
    assert [record.getMessage() for record in caplog.records].count(caplog.records[0].getMessage()) == 1
    assert "no c++ is on the PATH" in caplog.text
