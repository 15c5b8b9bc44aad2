import pytest
import torch
from logprob_cases import PeakMemory, full_logprobs, inputs
from torch import Tensor

from gagar_mcore.ops.logprob import linear_logprobs
from gagar_mcore.ops.logprob_blocks import BUFFERS, plan_blocks

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}
LARGE = 1 << 28


def gradients(outputs: tuple[Tensor, Tensor], hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of a loss that weighs every row of log-probs and entropies differently."""
    logprobs, entropies = outputs
    rows = torch.arange(len(logprobs), dtype=torch.float64, device=logprobs.device)
    loss = (logprobs * (rows + 1).sin()).sum() + (entropies * (rows + 2).cos()).sum()
    return torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk_bytes", [3000, 20_000, LARGE])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_equal_those_of_the_full_logits(device, dtype, chunk_bytes, temperature):
    hidden, weight, targets = (t.detach().to(device) for t in inputs(37, 101, 16, dtype))
    hidden.requires_grad_(), weight.requires_grad_()
    ours = linear_logprobs(hidden, weight, targets, temperature=temperature, entropy="differentiable", chunk_bytes=chunk_bytes)
    full = full_logprobs(hidden, weight, targets, temperature)

    for value, expected in zip(ours, full, strict=True):
        assert value.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(value.double(), expected, atol=min(TOLERANCE[dtype], 2e-5), rtol=0)
    for value, expected in zip(gradients(ours, hidden, weight), gradients(full, hidden, weight), strict=True):
        torch.testing.assert_close(value, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk_bytes", [3000, LARGE])
@pytest.mark.parametrize("entropy", ["none", "detached"])
def test_gradients_of_logprobs_alone_equal_those_of_the_full_logits(dtype, chunk_bytes, entropy):
    hidden, weight, targets = inputs(37, 101, 16, dtype)
    ours = linear_logprobs(hidden, weight, targets, temperature=0.6, entropy=entropy, chunk_bytes=chunk_bytes)
    full = full_logprobs(hidden, weight, targets, 0.6)
    rows = (torch.arange(len(targets)) + 1.0).sin()
    for value, expected in zip(
        torch.autograd.grad((ours[0] * rows).sum(), (hidden, weight)),
        torch.autograd.grad((full[0] * rows).sum(), (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(value, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if entropy == "detached":
        torch.testing.assert_close(ours[1].double(), full[1], atol=min(TOLERANCE[dtype], 2e-5), rtol=0)


def test_the_gradient_of_each_output_is_the_derivative():
    hidden, weight, targets = inputs(5, 11, 3)

    def outputs(hidden, weight):
        return linear_logprobs(hidden, weight, targets, temperature=0.8, entropy="differentiable", chunk_bytes=400)

    assert torch.autograd.gradcheck(outputs, (hidden, weight))


@pytest.mark.parametrize(("frozen", "trained"), [(0, 1), (1, 0)])
def test_a_frozen_input_gets_no_gradient_and_changes_none(frozen, trained):
    *leaves, targets = inputs(9, 20, 4)
    expected = torch.autograd.grad(full_logprobs(*leaves, targets)[0].sum(), leaves[trained])[0]
    leaves[frozen].requires_grad_(False)
    linear_logprobs(*leaves, targets, chunk_bytes=800)[0].sum().backward()

    assert leaves[frozen].grad is None
    torch.testing.assert_close(leaves[trained].grad, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("chunk_bytes", [400, LARGE])
@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e4])
def test_flat_and_peaked_distributions_keep_their_precision(scale, chunk_bytes):
    hidden, weight, targets = inputs(20, 50, 8, torch.float32)
    hidden = (hidden.detach() * scale).requires_grad_()
    ours = linear_logprobs(hidden, weight, targets, entropy="differentiable", chunk_bytes=chunk_bytes)
    full = full_logprobs(hidden, weight, targets)

    for value, expected in zip(ours, full, strict=True):
        torch.testing.assert_close(value.double(), expected, atol=3e-6 * max(scale, 10), rtol=0)
    assert (ours[1] >= 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients(ours, hidden, weight))


@pytest.mark.parametrize("chunk_bytes", [100, LARGE])
def test_logits_of_minus_infinity_have_no_share(chunk_bytes):
    hidden, weight, _ = inputs(6, 12, 1)
    hidden = hidden.detach().abs().requires_grad_()
    with torch.no_grad():
        weight[:5] = -torch.inf
    targets = torch.tensor([5, 6, 7, 11, 0, 4])
    logprobs, entropy = linear_logprobs(hidden, weight, targets, entropy="differentiable", chunk_bytes=chunk_bytes)
    expected, expected_entropy = full_logprobs(hidden[:4], weight[5:], targets[:4] - 5)
    gradient = torch.autograd.grad(logprobs[:4].sum() + entropy.sum(), weight)[0]

    torch.testing.assert_close(logprobs[:4], expected)
    torch.testing.assert_close(entropy[:4], expected_entropy)
    assert logprobs[4:].tolist() == [-torch.inf] * 2
    assert gradient.isfinite().all() and gradient[:5].eq(0).all()


def test_a_row_without_a_distribution_is_nan_and_spoils_no_other():
    hidden, weight, targets = inputs(4, 12, 1)
    expected = full_logprobs(hidden, weight, targets)[0]
    with torch.no_grad():
        hidden[1], hidden[2] = torch.nan, torch.inf  # logits of minus infinity and of infinity
    logprobs, entropy = linear_logprobs(hidden, weight, targets, entropy="detached", chunk_bytes=100)

    for values in (logprobs, entropy):
        assert values.isnan().tolist() == [False, True, True, False]
    torch.testing.assert_close(logprobs[[0, 3]], expected[[0, 3]])


def test_a_row_whose_logits_are_all_minus_infinity_is_nan_as_in_log_softmax():
    hidden, weight, targets = inputs(2, 7, 1)
    weight = torch.full_like(weight, -torch.inf)
    logprobs, _ = linear_logprobs(hidden.abs(), weight, targets, chunk_bytes=100)

    assert full_logprobs(hidden.abs(), weight, targets)[0].isnan().all()
    assert logprobs.isnan().all()


@pytest.mark.parametrize("entropy", ["none", "differentiable"])
def test_no_tokens_give_no_values_and_a_gradient_of_zero(entropy):
    hidden, weight, targets = inputs(0, 10, 4)
    logprobs, entropies = linear_logprobs(hidden, weight, targets, entropy=entropy)
    logprobs.sum().backward()

    assert logprobs.shape == (0,) and (entropies is None or entropies.shape == (0,))
    assert hidden.grad.shape == (0, 4)
    assert weight.grad.eq(0).all()


def test_one_token_and_views_with_strides():
    hidden, weight, targets = inputs(6, 10, 8)
    views = hidden.T[::2, ::6].T, weight[::2, ::2], targets[::6] % 5
    logprobs, _ = linear_logprobs(*views, chunk_bytes=400)
    expected, _ = full_logprobs(*views)

    torch.testing.assert_close(logprobs, expected)
    for ours, full in zip(*(torch.autograd.grad(x.sum(), (hidden, weight)) for x in (logprobs, expected)), strict=True):
        torch.testing.assert_close(ours, full)


def test_the_same_inputs_give_the_same_bits():
    hidden, weight, targets = inputs(300, 500, 32, torch.float32)
    runs = []
    for _ in range(2):
        outputs = linear_logprobs(hidden, weight, targets, entropy="differentiable", chunk_bytes=200_000)
        runs.append((*outputs, *gradients(outputs, hidden, weight)))

    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def saved_bytes(entropy: str) -> int:
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
        linear_logprobs(*inputs(50, 20, 4), entropy=entropy)
    return sum(sizes)


def test_a_detached_entropy_is_the_same_value_and_keeps_nothing():
    hidden, weight, targets = inputs(50, 20, 4)
    _, detached = linear_logprobs(hidden, weight, targets, entropy="detached")
    _, differentiable = linear_logprobs(hidden, weight, targets, entropy="differentiable")

    assert torch.equal(detached, differentiable)
    assert differentiable.requires_grad and not detached.requires_grad
    assert saved_bytes("detached") == saved_bytes("none") > 0
    assert linear_logprobs(hidden, weight, targets)[1] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "vocabulary"), [(2000, 2000), (2000, 8000), (8000, 2000)])
def test_memory_stays_within_the_documented_bound(tokens, vocabulary, dtype):
    hidden, weight, targets = inputs(tokens, vocabulary, 32, dtype)
    chunk_bytes = 2_000_000
    with PeakMemory() as watch:
        logprobs, entropy = linear_logprobs(hidden, weight, targets, entropy="differentiable", chunk_bytes=chunk_bytes)
        (logprobs.sum() + entropy.sum()).backward()
    held = hidden.grad.nbytes + weight.grad.nbytes + (weight.numel() * 4 if dtype == torch.bfloat16 else 0)

    assert watch.largest <= max(chunk_bytes // BUFFERS, weight.numel() * 4, hidden.nbytes)
    assert held < watch.peak <= held + chunk_bytes + 112 * tokens
    assert watch.peak < tokens * vocabulary * 4


def test_one_block_is_kept_for_the_backward_pass_in_a_third_of_the_chunk():
    hidden, weight, targets = inputs(200, 300, 4, torch.float32)
    chunk_bytes = 1_000_000
    with PeakMemory() as watch:
        linear_logprobs(hidden, weight, targets, chunk_bytes=chunk_bytes)[0].sum().backward()

    assert 200 * 300 * 4 == watch.largest <= chunk_bytes // BUFFERS
    assert watch.peak <= hidden.grad.nbytes + weight.grad.nbytes + chunk_bytes + 112 * 200


def test_the_watch_on_memory_sees_full_logits():
    hidden, weight, targets = inputs(200, 300, 4)
    with PeakMemory() as watch:
        full_logprobs(hidden, weight, targets)[0].sum().backward()

    assert watch.largest >= 200 * 300 * 8
    assert watch.peak >= 2 * watch.largest


@pytest.mark.parametrize("tokens", [0, 1, 100, 10**6])
@pytest.mark.parametrize("vocabulary", [1, 500, 152_000])
@pytest.mark.parametrize("hidden_size", [1, 64, 4096])
@pytest.mark.parametrize("chunk_bytes", [100_000, 1 << 20, 1 << 28])
def test_blocks_cover_everything_and_fit_into_the_chunk(tokens, vocabulary, hidden_size, chunk_bytes):
    blocks = plan_blocks(tokens, vocabulary, hidden_size, chunk_bytes, 4)
    rows, columns = blocks.rows, blocks.columns

    assert sum(len(range(tokens)[part]) for part in blocks.over_tokens()) == tokens
    assert sum(len(range(vocabulary)[part]) for part in blocks.over_vocabulary()) == vocabulary
    assert 4 * BUFFERS * (rows * columns + (rows + columns) * hidden_size) <= chunk_bytes
    if rows < tokens or columns < vocabulary:  # then the chunk is used
        grown = (rows + 1) * columns + (rows + 1 + columns) * hidden_size
        wider = rows * (columns + 1) + (rows + columns + 1) * hidden_size
        assert 4 * BUFFERS * (grown if rows < tokens else wider) > chunk_bytes


def test_a_chunk_too_small_for_one_logit_is_refused_with_the_least():
    hidden, weight, targets = inputs(3, 5, 8, torch.float32)
    with pytest.raises(ValueError, match="chunk_bytes is 203, but a hidden size of 8 needs at least 204"):
        linear_logprobs(hidden, weight, targets, chunk_bytes=203)

    assert linear_logprobs(hidden, weight, targets, chunk_bytes=204)[0].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(3)}, r"hidden must be \[N, H\] and weight \[V / TP, H\], not \[3\] and \[5, 8\]"),
        ({"weight": torch.zeros(5, 7)}, r"not \[3, 8\] and \[5, 7\]"),
        ({"weight": torch.zeros(0, 8)}, r"not \[3, 8\] and \[0, 8\]"),
        ({"targets": torch.zeros(4, dtype=torch.int64)}, r"targets must be \[3\], one for each row of hidden, not \[4\]"),
        ({"targets": torch.zeros(3, dtype=torch.int32)}, "targets must be int64, not torch.int32"),
        ({"hidden": torch.zeros(3, 8).bfloat16()}, "both be one of .*, not torch.bfloat16 and torch.float32"),
        ({"hidden": torch.zeros(3, 8).int(), "weight": torch.zeros(5, 8).int()}, "not torch.int32 and torch.int32"),
        ({"targets": torch.zeros(3, dtype=torch.int64, device="meta")}, "lie on cpu, cpu and meta"),
        ({"targets": torch.tensor([0, 5, -1])}, r"targets\[1\] is 5, outside a vocabulary of 5"),
        ({"targets": torch.tensor([0, 4, -1])}, r"targets\[2\] is -1, outside"),
        ({"temperature": 0.0}, "temperature must be positive and finite, not 0.0"),
        ({"temperature": float("nan")}, "temperature must be positive"),
        ({"entropy": "yes"}, 'entropy must be "none", "detached" or "differentiable", not \'yes\''),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change, message):
    hidden, weight, targets = inputs(3, 5, 8, torch.float32)
    with pytest.raises(ValueError, match=message):
        linear_logprobs(**({"hidden": hidden, "weight": weight, "targets": targets} | change))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_a_target_out_of_range_gives_nan_without_a_wait():
    hidden, weight, _ = (t.detach().cuda() for t in inputs(3, 5, 8, torch.bfloat16))
    targets = torch.tensor([0, 5, -1], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        logprobs, _ = linear_logprobs(hidden, weight, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert logprobs.isnan().tolist() == [False, True, True]
