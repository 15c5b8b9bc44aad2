"""The table of published layouts for Flash and Pro: 16,384 tokens a GPU, full recomputation, fp32 gradients."""

import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.memory import Memory, mean_stage, memory_on_rank, worst_stage
from gagar_mcore.plan.workload import Workload

FLASH, PRO = "mimo-v2-flash", "mimo-v2.6-pro"
WORK = Workload(sequences=128, context=32768)
# GB: weights, gradients, Adam on the GPU, layer inputs, MoE work, logits, total, total with Adam on the host.
TABLE = [
    (FLASH, 64, (4, 16, 4, 2), (10.4, 20.8, 58.2, 1.6, 1.9, 5.0, 98, 40)),
    (FLASH, 128, (4, 16, 4, 2), (10.4, 20.8, 29.1, 1.6, 1.9, 5.0, 69, 40)),
    (FLASH, 256, (4, 32, 4, 4), (5.7, 11.3, 14.5, 1.6, 1.9, 5.0, 40, 26)),
    (PRO, 256, (8, 32, 8, 4), (8.7, 17.4, 48.2, 1.8, 1.2, 2.5, 80, 32)),
    (PRO, 512, (8, 32, 8, 4), (8.7, 17.4, 24.1, 1.8, 1.2, 2.5, 56, 32)),
]


def layout(gpus: int, tp: int, ep: int, pp: int, cp: int, **changes) -> TrainerSection:
    fields = {"precision": "bf16", "recompute": "full", "tokens_per_microbatch": 16384, **changes}
    return TrainerSection(tp=tp, ep=ep, pp=pp, cp=cp, dp=gpus // (tp * pp * cp), **fields)


@pytest.mark.parametrize(("name", "gpus", "sizes", "expected"), TABLE)
def test_the_mean_stage_is_that_of_the_table(name, gpus, sizes, expected):
    on_gpu = mean_stage(preset(name), layout(gpus, *sizes), WORK)
    on_host = mean_stage(preset(name), layout(gpus, *sizes, offload_optimizer=True), WORK)
    columns = (on_gpu.weights, on_gpu.gradients, on_gpu.optimizer, on_gpu.activations, on_gpu.feed_forward, on_gpu.logits)
    computed = [value / 1e9 for value in (*columns, on_gpu.total, on_host.total)]
    assert computed == pytest.approx(expected, rel=0.05)
    assert on_host.optimizer == 0


def test_the_worst_stage_takes_at_least_what_each_stage_takes():
    for name, gpus, sizes, _ in TABLE:
        stage, worst = worst_stage(preset(name), layout(gpus, *sizes), WORK)
        stages = [memory_on_rank(preset(name), layout(gpus, *sizes), WORK, s) for s in range(sizes[2])]
        assert worst == stages[stage] == max(stages, key=lambda memory: memory.total)


def memory(**changes) -> Memory:
    return memory_on_rank(preset(FLASH), layout(128, 4, 16, 4, 2, **changes), WORK, stage=1)


def test_recomputation_trades_activations():
    none, selective, full = (memory(recompute=how).activations for how in ("none", "selective", "full"))
    assert none > selective > 5 * full


def test_precision_of_gradients_and_moments():
    usual = memory()
    assert memory(gradient_dtype="bf16").gradients == usual.gradients / 2
    assert memory(**{"optimizer": {"state_dtype": "bf16"}}).optimizer == pytest.approx(usual.optimizer * 8 / 12)
    exact = memory(precision="fp32")
    assert (exact.weights, exact.gradients) == (2 * usual.weights, usual.gradients)
    assert exact.optimizer == pytest.approx(usual.optimizer * 8 / 12)  # weights are their own master copy


def test_multi_token_prediction_that_trains_is_kept_on_the_last_stage():
    frozen, trained = (
        [memory_on_rank(preset(FLASH), layout(128, 4, 16, 4, 2, mtp=mtp), WORK, stage) for stage in range(4)]
        for mtp in ("frozen", "train")
    )
    assert frozen[:3] == trained[:3]
    tokens, heads = 16384, 64 + 8
    layer = tokens / 4 * 2 * (4 * 4096 + heads * (192 + 128) + 3 * 16384)  # norms and residuals, attention, dense network
    more = trained[3].activations - frozen[3].activations
    assert more == pytest.approx(3 * (layer + tokens * 2 * 4096 * (6 / 4 + 2)) + 2 * 152576 * 4096 / 4, rel=0.01)
    assert trained[3].gradients - frozen[3].gradients == pytest.approx(4 * 987_820_224 / 4, rel=0.001)


def test_interleaving_holds_more_micro_batches_in_flight():
    assert memory(vpp=2).activations > memory().activations


def test_a_longer_sequence_takes_more_and_context_parallelism_takes_it_back():
    flash, long = preset(FLASH), Workload(sequences=16, context=8 * 32768)
    usual, spread = layout(128, 4, 16, 4, 2), layout(512, 4, 16, 4, 16)
    assert memory_on_rank(flash, usual, long, 0).activations == 8 * memory_on_rank(flash, usual, WORK, 0).activations
    assert memory_on_rank(flash, spread, long, 0).activations == memory_on_rank(flash, usual, WORK, 0).activations


def test_context_parallelism_has_its_own_line():
    work = Workload(sequences=128, context=16384)
    alone, spread = (memory_on_rank(preset(FLASH), layout(64, 4, 16, 4, cp), work, 1) for cp in (1, 2))
    assert alone.context == 0 < spread.context == pytest.approx(spread.total - alone.total, rel=0.01)


def test_unequal_load_of_experts_has_its_own_line():
    model = preset(FLASH)
    balanced, thrice = (memory_on_rank(model, layout(128, 4, 16, 4, 2), WORK, 1, imbalance=i) for i in (1.0, 3.0))
    assert balanced.expert_imbalance == 0
    assert thrice.expert_imbalance == 2 * balanced.feed_forward
    assert thrice.total - balanced.total == thrice.expert_imbalance
