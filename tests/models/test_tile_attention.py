import pytest
import torch

from gagar_mcore.models import tile_attention

HEADS = 4


def tile(seed: int, groups: int, dim: int, value_dim: int, keys: int = 7) -> tuple[torch.Tensor, ...]:
    """Query, key, value and gradient of 3 blocks, 5 queries each."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 5, HEADS, dim), (3, keys, groups, dim), (3, keys, groups, value_dim), (3, 5, HEADS, value_dim))
    query, key, value, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value, gradient


def causal_bias(keys: int) -> torch.Tensor:
    hidden = torch.arange(keys) > torch.arange(keys - 5, keys)[:, None]
    return torch.zeros(5, keys, dtype=torch.float64).masked_fill(hidden, float("-inf"))


@pytest.mark.parametrize(
    ("mask", "bias"),
    [(None, torch.zeros(5, 7)), (causal_bias(7), causal_bias(7)), (tile_attention.CAUSAL, causal_bias(5))],
    ids=["all seen", "causal bias", "causal"],
)
@pytest.mark.parametrize(("groups", "dim", "value_dim"), [(4, 8, 8), (2, 8, 6), (1, 6, 8)])
def test_the_fused_kernel_and_matrix_products_agree_with_autograd(mask, bias, groups, dim, value_dim):
    query, key, value, gradient = tile(0, groups, dim, value_dim, bias.shape[1])
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    keys, values = (tensor.repeat_interleave(HEADS // groups, 2) for tensor in inputs[1:])
    scores = torch.einsum("nrhd,nmhd->nrhm", inputs[0], keys) * dim**-0.5
    scores = scores + bias[:, None]
    expected = torch.einsum("nrhm,nmhd->nrhd", scores.softmax(-1), values)
    expected_lse = scores.logsumexp(-1)
    expected_gradients = torch.autograd.grad(expected, inputs, gradient)

    for forward, backward in (
        (tile_attention.fused_forward, tile_attention.fused_backward),
        (tile_attention.plain_forward, tile_attention.plain_backward),
    ):
        output, lse = forward(query, key, value, mask)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(lse, expected_lse)
        torch.testing.assert_close(backward(gradient, query, key, value, output, lse, mask), expected_gradients)


def test_of_a_part_of_the_keys_both_take_the_whole_output_and_its_denominator():
    query, key, value, gradient = tile(1, 2, 8, 6)
    output, lse = tile_attention.plain_forward(query, key, value, None)
    _, grad_key, _ = tile_attention.plain_backward(gradient, query, key, value, output, lse, None)
    for backward in (tile_attention.fused_backward, tile_attention.plain_backward):
        _, part, _ = backward(gradient, query, key[:, :3], value[:, :3], output, lse, None)
        torch.testing.assert_close(part, grad_key[:, :3])


def test_queries_with_an_infinite_denominator_get_and_give_no_gradient():
    query, key, value, gradient = tile(2, 2, 8, 6)
    output, lse = tile_attention.plain_forward(query, key, value, None)
    lse[:, 3:] = float("inf")
    for backward in (tile_attention.fused_backward, tile_attention.plain_backward):
        grad_query, grad_key, _ = backward(gradient, query, key, value, output, lse, None)
        _, expected, _ = backward(gradient[:, :3], query[:, :3], key, value, output[:, :3], lse[:, :3], None)
        assert not grad_query[:, 3:].any()
        torch.testing.assert_close(grad_key, expected)
