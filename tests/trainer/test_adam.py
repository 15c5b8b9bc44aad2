"""StreamedAdamW alone, against PyTorch's AdamW."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gagar_mcore.trainer.adam import StreamedAdamW

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = (1000, 37, 64)
STEPS = 5


def shards(dtype=torch.float32, sizes=SIZES):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def gradients(step, sizes=SIZES):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(size, generator=generator) for size in sizes]


def optimizer_of(parameters, moments=torch.float32, on_host=False, block=1 << 20):
    return StreamedAdamW([{"params": parameters, **OPTIONS}], moments, on_host, block)


def train(optimizer, steps=range(STEPS)):
    (group,) = optimizer.param_groups
    for step in steps:
        for parameter, gradient in zip(group["params"], gradients(step), strict=True):
            parameter.decoupled_grad = gradient
        optimizer.step()
    return group["params"]


def plain_adam() -> list[torch.Tensor]:
    parameters = shards()
    optimizer = torch.optim.AdamW(parameters, **OPTIONS, fused=True)
    for step in range(STEPS):
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return parameters


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("block", [1 << 20, 64])
def test_fp32_is_pytorchs_adamw_bit_for_bit(on_host, block):
    trained = train(optimizer_of(shards(), on_host=on_host, block=block))

    assert all(map(torch.equal, trained, plain_adam()))


@pytest.mark.parametrize("on_host", [False, True])
def test_weights_in_bf16_are_the_rounded_master_weights(on_host):
    optimizer = optimizer_of(shards(torch.bfloat16), on_host=on_host)
    masters = [parameter.float() for parameter in optimizer.param_groups[0]["params"]]
    expected = train(optimizer_of(masters))

    for parameter, master in zip(train(optimizer), expected, strict=True):
        assert torch.equal(optimizer.get_unscaled_state(parameter, "master_param"), master)
        assert torch.equal(parameter, master.bfloat16())


def test_steps_too_small_for_bf16_add_up_in_the_master_weights():
    parameter = torch.ones(1, dtype=torch.bfloat16)
    optimizer = StreamedAdamW([{"params": [parameter], **OPTIONS, "lr": 1e-4, "weight_decay": 0.0}], torch.float32, on_host=True)
    for _ in range(60):
        parameter.decoupled_grad = torch.ones(1)
        optimizer.step()

    assert parameter.item() == torch.tensor(1 - 60 * 1e-4).bfloat16().item() < 1


def test_moments_in_bf16_stay_near():
    optimizer = optimizer_of(shards(), torch.bfloat16)
    trained = train(optimizer)

    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.bfloat16}
    for ours, expected in zip(trained, plain_adam(), strict=True):
        torch.testing.assert_close(ours, expected, atol=0.02 * STEPS * OPTIONS["lr"], rtol=0)


@pytest.mark.parametrize(
    ("dtype", "moments", "bytes_each"),
    [
        (torch.float32, torch.float32, 8),
        (torch.float32, torch.bfloat16, 4),
        (torch.bfloat16, torch.float32, 12),
        (torch.bfloat16, torch.bfloat16, 8),
    ],
)
def test_state_takes_two_moments_and_master_weights_where_needed(dtype, moments, bytes_each):
    assert optimizer_of(shards(dtype), moments).state_bytes() == bytes_each * sum(SIZES)


class Peak(TorchDispatchMode):
    """The most bytes that tensors made under it held at a time."""

    def __init__(self):
        super().__init__()
        self.alive = self.most = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result._is_view() and all(result is not given for given in args):
            self.alive += result.nbytes
            self.most = max(self.most, self.alive)
            weakref.finalize(result, self._free, result.nbytes)
        return result

    def _free(self, size):
        self.alive -= size


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_a_step_with_state_on_the_host_needs_a_few_blocks_of_room(moments):
    block = 64
    optimizer = optimizer_of(shards(torch.bfloat16), moments, on_host=True, block=block)
    train(optimizer, [0])
    gc.collect()
    with Peak() as peak:
        optimizer.step()

    assert 3 * block * 4 <= peak.most <= 8 * block * 4 < 4 * max(SIZES)


def test_groups_and_state_move_into_another_optimizer():
    first = optimizer_of(shards(torch.bfloat16), on_host=True)
    train(first, range(3))
    second = optimizer_of([torch.zeros_like(parameter) for parameter in first.state], on_host=False)
    second.load_state_dict(first.state_dict())
    (group,), names = second.param_groups, ("master_param", "exp_avg", "exp_avg_sq")
    for parameter, source in zip(group["params"], first.state, strict=True):
        parameter.copy_(source)
        for name in names:
            second.set_scaled_state(parameter, name, first.get_unscaled_state(source, name))

    assert group["step"] == 3
    assert all(map(torch.equal, train(second, [3, 4]), train(first, [3, 4])))
