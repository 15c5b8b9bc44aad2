"""What context parallelism takes on one rank, layer by layer: `models.ring` passes the keys and values of global layers on from
rank to rank, `models.halo` fetches the keys before each of a sequence's two chunks for sliding ones. Both attend in plain PyTorch
and sum gradients in fp32, whatever the precision of training."""

from dataclasses import dataclass

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.plan.states import value_bytes
from gagar_mcore.plan.workload import Workload

SUM_BYTES = 4
TILE_ROWS, TILE_AREA = 128, 1 << 17  # of gagar_mcore.models.spans


@dataclass(frozen=True, slots=True)
class ContextBytes:
    """Of one layer and micro-batch. kept: from forward to backward pass. at_work: beyond that, while the layer is under work.
    sent: by the rank, once forward and once backward."""

    kept: float
    at_work: float
    forward_sent: float
    backward_sent: float


NOTHING = ContextBytes(0.0, 0.0, 0.0, 0.0)


def context_bytes(model: ModelConfig, layout: TrainerSection, work: Workload, layer: int) -> ContextBytes:
    """For as many tokens as a rank holds at once."""
    if layout.cp == 1:
        return NOTHING
    tokens, size = work.tokens_at_once(layout), value_bytes(layout)
    entries = model.layer_kv_heads(layer) / layout.tp * (model.head_dim + model.v_head_dim)
    queries = tokens * model.num_heads / layout.tp * model.head_dim * SUM_BYTES
    if model.is_sliding(layer):
        return _halo(model, layout, work, entries, queries)
    keys, sums, others = tokens * entries * size, tokens * entries * SUM_BYTES, layout.cp - 1
    tile = _tile_bytes(model, layout, entries, work.context / layout.cp)
    return ContextBytes(
        kept=0.0,
        at_work=2 * keys + 3 * sums + 2 * queries + tile,  # here, arriving; own, arriving, leaving; in sum, of one rank's keys
        forward_sent=others * keys,
        backward_sent=others * keys + layout.cp * sums,  # gradients go all the way round
    )


def _tile_bytes(model: ModelConfig, layout: TrainerSection, entries: float, columns: float) -> float:
    """Of a tile with so many keys: scores, queries and context, keys and values, each with its gradient."""
    area, heads = max(TILE_AREA, TILE_ROWS * columns), model.num_heads / layout.tp
    queries, keys = area / columns * heads * (model.head_dim + model.v_head_dim), area / TILE_ROWS * entries
    return 2 * SUM_BYTES * (area * heads + queries + keys)


def _halo(model: ModelConfig, layout: TrainerSection, work: Workload, entries: float, queries: float) -> ContextBytes:
    """Chunks shorter than a window are gathered from all ranks."""
    tokens, size = work.tokens_at_once(layout), value_bytes(layout)
    sequences, chunk, reach = tokens * layout.cp / work.context, work.context / (2 * layout.cp), model.window_keys - 1
    halo = 2 * sequences * min(reach, work.context)
    fetched = halo if chunk >= reach else layout.cp * tokens
    tile = _tile_bytes(model, layout, entries, reach + TILE_ROWS)
    sent = halo if chunk >= reach else (layout.cp - 1) * tokens
    return ContextBytes(
        kept=halo * entries * size,
        at_work=queries + entries * ((tokens + halo) * (SUM_BYTES + size) + (tokens + fetched) * size) + tile,
        forward_sent=sent * entries * size,
        backward_sent=sent * entries * size,
    )
