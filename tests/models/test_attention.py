import numpy as np
import pytest
import torch

from gagar_mcore.models.core_attention import attention
from gagar_mcore.models.packed import packed_attention, packed_sequences
from gagar_mcore.models.rotary import rotary_table, rotate
from gagar_mcore.models.spans import Spans

LENGTHS = (5, 1, 9)
HEADS, GROUPS, DIM, VALUE_DIM = 4, 2, 8, 6


def heads(seed: int, tokens: int = sum(LENGTHS)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, DIM), (GROUPS, DIM), (GROUPS, VALUE_DIM))
    query, key, value = (torch.randn(tokens, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


def bounds() -> torch.Tensor:
    return torch.tensor([0, *LENGTHS]).cumsum(0)


def one_sequence(query, key, value, window, sinks):
    """The definition, one query and head at a time."""
    output = torch.zeros(len(query), HEADS, VALUE_DIM, dtype=query.dtype)
    for i in range(len(query)):
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            first = 0 if window is None else max(0, i - window + 1)
            seen = range(first, i + 1)
            weights = torch.stack([query[i, head] @ key[j, group] * DIM**-0.5 for j in seen]).exp()
            total = weights.sum() + (0 if sinks is None else sinks[head].exp())
            output[i, head] = sum(w * value[j, group] for w, j in zip(weights, seen, strict=True)) / total
    return output


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_each_packed_sequence_attends_by_the_definition(window, with_sinks):
    query, key, value = heads(0)
    sinks = torch.linspace(-1, 1, HEADS, dtype=torch.float64) if with_sinks else None
    packed = packed_attention(query, key, value, packed_sequences(bounds()), window, sinks)

    for start, length in zip(bounds(), LENGTHS, strict=False):
        part = slice(int(start), int(start) + length)
        expected = one_sequence(query[part], key[part], value[part], window, sinks)
        assert torch.allclose(packed[part], expected, atol=1e-12)


@pytest.mark.parametrize(("distance", "seen"), [(2, True), (3, False)])
def test_the_window_counts_the_query_itself(distance, seen):
    query, key, value = heads(1)
    packed = packed_sequences(bounds())
    last = sum(LENGTHS) - 1
    before = packed_attention(query, key, value, packed, 3, None)
    key[last - distance] += 1.0
    after = packed_attention(query, key, value, packed, 3, None)

    assert torch.equal(before[last], after[last]) is not seen


def test_gradients_reach_queries_keys_values_and_sinks():
    tensors = [tensor.requires_grad_() for tensor in (*heads(2), torch.zeros(HEADS, dtype=torch.float64))]
    packed = packed_sequences(bounds())
    query, key, value, sinks = tensors
    loss = packed_attention(query, key, value, packed, 3, sinks).pow(2).sum()
    for tensor, gradient in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
        assert gradient.abs().max() > 0, tensor.shape


def test_rotation_turns_the_first_dimensions_by_position_and_keeps_the_rest():
    query, _, _ = heads(3)
    positions = packed_sequences(bounds()).positions
    rotated = rotate(query, *rotary_table(positions, theta=100.0, dim=4, head_dim=query.shape[-1]))

    assert torch.equal(rotated[..., 4:], query[..., 4:])
    assert torch.equal(rotated[positions == 0], query[positions == 0])
    angle = torch.tensor(2.0)
    expected = query[2, 0, 0] * angle.cos() - query[2, 0, 2] * angle.sin()
    assert torch.isclose(rotated[2, 0, 0], expected, atol=1e-6)


def dense(query, key, value, window, sinks):
    """One sequence, by the whole matrix of scores."""
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    hidden = (distance < 0) | (distance >= (window or len(query)))
    keys, values = (heads.repeat_interleave(HEADS // GROUPS, dim=1).transpose(0, 1) for heads in (key, value))
    scores = (query.transpose(0, 1) @ keys.transpose(1, 2) * DIM**-0.5).masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(query), 1)], dim=-1)
    return (scores.softmax(-1)[..., : len(query)] @ values).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 70, 300])
def test_sequences_of_many_tiles_and_their_gradients_are_those_of_the_whole_matrix(window):
    lengths = (300, 1, 129, 64, 0, 520, 128)
    tensors = [tensor.requires_grad_() for tensor in heads(4, sum(lengths))]
    if window is not None:
        tensors.append(torch.linspace(-2, 2, HEADS, dtype=torch.float64, requires_grad=True))
    sinks = tensors[3] if window is not None else None
    probe = torch.randn(sum(lengths), HEADS, VALUE_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    ours = packed_attention(*tensors[:3], packed_sequences(torch.tensor([0, *lengths]).cumsum(0)), window, sinks)
    parts = zip(*(tensor.split(lengths) for tensor in tensors[:3]), strict=True)
    theirs = torch.cat([dense(*part, window, sinks) for part in parts])

    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    gradients = (torch.autograd.grad((output * probe).sum(), tensors) for output in (ours, theirs))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


@pytest.mark.parametrize(("queries", "keys"), [((0, 8), (0, 4)), ((4, 4), (0, 8)), ((0, 4), (4, 4)), ((0, 8), (0, 8))])
def test_a_part_of_the_queries_or_of_the_keys_leaves_the_others_alone(queries, keys):
    tensors = [tensor.requires_grad_() for tensor in heads(7, 8)]
    spans = Spans(np.array([queries]), np.array([keys]), 8, torch.device("cpu"), causal=False)
    seeing, seen = (slice(first, first + count) for first, count in (queries, keys))
    query, key, value = tensors
    groups = HEADS // GROUPS
    scores = torch.einsum("qhd,khd->hqk", query[seeing], key[seen].repeat_interleave(groups, 1)) * DIM**-0.5
    part = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[seen].repeat_interleave(groups, 1))
    theirs = torch.zeros(8, HEADS, VALUE_DIM, dtype=part.dtype).index_add(0, torch.arange(8)[seeing], part)
    ours = attention(*tensors, None, spans)

    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    for one, other in zip(*(torch.autograd.grad((output**2).sum(), tensors) for output in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_bfloat16_is_rounded_only_where_it_is_stored():
    lengths = (200, 3)
    exact = [tensor.bfloat16().double().requires_grad_() for tensor in heads(6, sum(lengths))]
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    packed = packed_sequences(torch.tensor([0, *lengths]).cumsum(0))
    outputs = [packed_attention(*tensors, packed, 100, None) for tensors in (exact, rounded)]
    both = zip(outputs, (exact, rounded), strict=True)
    gradients = [torch.autograd.grad((output.double() ** 2).sum(), tensors) for output, tensors in both]

    assert outputs[1].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[1].double(), outputs[0], rtol=2**-8, atol=1e-6)
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() <= 0.01 * one.abs().max()
