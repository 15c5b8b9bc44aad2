import pytest
import torch
from context_ranks import RANKS, measure

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models import spans
from gagar_mcore.models.presets import preset
from gagar_mcore.models.tile_attention import tile_area
from gagar_mcore.plan.context import TILE_AREA, TILE_ROWS, context_bytes
from gagar_mcore.plan.workload import Workload

TOKENS, FLASH = 2048, preset("mimo-v2-flash")  # on a rank
LAYOUT = TrainerSection(tp=4, ep=1, cp=RANKS, precision="bf16", tokens_per_microbatch=TOKENS)
WORK = Workload(sequences=1, context=RANKS * TOKENS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return measure(FLASH, TOKENS, LAYOUT.tp, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("kind", "layer"), [("global", 0), ("sliding", 1)])
def test_the_backward_pass_takes_what_is_planned_beside_the_gradients(measured, kind, layer):
    entries = (FLASH.num_heads * FLASH.head_dim + FLASH.layer_kv_heads(layer) * (FLASH.head_dim + FLASH.v_head_dim)) / LAYOUT.tp
    planned = context_bytes(FLASH, LAYOUT, WORK, layer).at_work + 2 * TOKENS * entries
    assert measured[kind] == pytest.approx(planned, rel=0.15)


def test_tiles_are_those_of_the_attention():
    assert (spans.TILE_ROWS, tile_area(torch.device("cuda"))) == (TILE_ROWS, TILE_AREA)


def test_without_context_parallelism_it_takes_nothing():
    alone = context_bytes(FLASH, LAYOUT.model_copy(update={"cp": 1}), WORK, 0)
    assert (alone.kept, alone.at_work, alone.forward_sent, alone.backward_sent) == (0, 0, 0, 0)


@pytest.mark.parametrize(("chunk", "sent"), [(127, 2 * 127), (126, 31 * 252)])
def test_chunks_shorter_than_a_window_are_gathered(chunk, sent):
    """A window reaches 127 keys back; 31 other ranks hold two chunks each."""
    work = Workload(sequences=1, context=64 * chunk)
    layout = LAYOUT.model_copy(update={"cp": 32, "tokens_per_microbatch": 2 * chunk})
    assert context_bytes(FLASH, layout, work, 1).forward_sent == sent * 2 * (192 + 128) * 2
