from dataclasses import replace

import torch

from gagar_mcore.engine.cache import GLOBAL, SLIDING, Chunk, PositionCache
from gagar_mcore.models.presets import PRESETS

CPU = torch.device("cpu")
MODEL = replace(
    PRESETS["tiny"],
    layer_types=(GLOBAL, SLIDING),
    sliding_window=4,
    num_heads=4,
    kv_heads=1,
    sliding_kv_heads=2,
    head_dim=3,
    v_head_dim=2,
)


def seen(mask, row, heads):
    """Which keys each of the row's tokens sees; every head must agree."""
    grid = (mask.view(-1, heads, 4 // heads, mask.shape[1] * heads // 4, mask.shape[2])[row] == 0).flatten(0, 1)
    assert (grid == grid[0]).all()
    return [row.nonzero()[:, 0].tolist() for row in grid[0]]


def test_chunks_are_padded_on_the_right():
    chunk = Chunk.of([3, 1], [[7, 8], [9]], [0, 5])
    assert chunk.ids.tolist() == [[7, 8], [9, 0]]
    assert chunk.positions.tolist() == [[0, 1], [5, 6]]
    assert chunk.lengths.tolist() == [2, 1]


def test_masks_follow_from_positions():
    cache = PositionCache(MODEL, rows=2, max_context=20, device=CPU)
    masks = cache.begin(Chunk.of([0, 1], [[1, 1], [1, 1]], [0, 5]))
    assert seen(masks[GLOBAL], 0, 1) == [[0], [0, 1]]
    assert seen(masks[GLOBAL], 1, 1) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]
    # Of a sliding layer only what the new tokens can reach is read: positions start - 3 to start + 1.
    # The window of 4 counts the token itself.
    assert seen(masks[SLIDING], 0, 2) == [[3], [3, 4]]
    assert seen(masks[SLIDING], 1, 2) == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_rows_of_unequal_length_keep_their_own_tokens_and_padding_reaches_nobody():
    cache = PositionCache(MODEL, rows=3, max_context=8, device=CPU)
    first = torch.arange(2 * 1 * 3 * 3.0).view(2, 1, 3, 3) + 1
    cache.begin(Chunk.of([2, 0], [[1], [1, 1, 1]], [0, 0]))
    cache.update(first, first[..., :2], 0)
    cache.begin(Chunk.of([2, 0], [[1], [1]], [1, 3]))
    second = -torch.ones(2, 1, 1, 3)
    keys, values = cache.update(second, second[..., :2], 0)
    assert keys.shape == (2, 1, 4, 3) and values.shape == (2, 1, 4, 2)
    assert keys[0, 0, :2].tolist() == [first[0, 0, 0].tolist(), [-1.0] * 3]
    assert keys[1, 0].tolist() == [*first[1, 0].tolist(), [-1.0] * 3]
    assert (keys[0, 0, 2:] == 0).all()  # where the first chunk's padding would have gone


def test_padding_at_the_very_end_of_the_context_stays_inside_the_cache():
    cache = PositionCache(MODEL, rows=2, max_context=4, device=CPU)
    cache.begin(Chunk.of([0, 1], [[1], [1, 1, 1]], [3, 0]))
    new = torch.ones(2, 1, 3, 3)
    keys, _ = cache.update(new, new[..., :2], 0)
    assert keys[0, 0, :, 0].tolist() == [0, 0, 0, 1]
    assert keys[1, 0, :, 0].tolist() == [1, 1, 1, 0]
