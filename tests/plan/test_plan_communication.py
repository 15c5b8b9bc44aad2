"""Counted by hand for a rank of a small model: 4 layers, 3 of them with experts, 2 sliding; fp32, 64 sequences of 256 tokens."""

from dataclasses import asdict

import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.flops import attention_flops, training_flops
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.communication import step_communication
from gagar_mcore.plan.cost import step_cost
from gagar_mcore.plan.gpus import COMPUTE_EFFICIENCY, GPUS, LINK_EFFICIENCY
from gagar_mcore.plan.parameters import parameters_on_rank
from gagar_mcore.plan.workload import Workload

TINY = preset("tiny")
WORK = Workload(sequences=64, context=256)
STREAM = 64 * 256 * 128 * 4  # a step's hidden states once


def sent(**sizes) -> dict[str, float]:
    return asdict(step_communication(TINY, TrainerSection(**{"tp": 1, "ep": 1, **sizes}), WORK))


def only(kind: str, amounts: dict[str, float]) -> float:
    assert all(amount == 0 for name, amount in amounts.items() if name != kind)
    return amounts[kind]


def test_one_rank_sends_nothing():
    assert not any(sent().values())


def test_tensor_parallelism_gathers_around_attention_and_dense_layers():
    """Five collectives, of which each rank sends half a stream, around 4 attentions and 1 dense network; seven if recomputed."""
    assert only("tensor", {**sent(tp=2), "gradients": 0, "weights": 0}) == 5 * 5 * STREAM / 2
    assert sent(tp=2, recompute="full")["tensor"] == 7 * 5 * STREAM / 2


def test_experts_get_and_return_top_k_copies_of_each_token():
    """Four exchanges in 3 layers, of two copies of half the tokens, of which half leave the rank."""
    assert sent(ep=2, dp=2)["experts"] == 4 * 3 * 2 * STREAM / 2 / 2


def test_a_stage_passes_activations_on_and_gradients_back():
    assert sent(pp=2)["pipeline"] == 2 * STREAM
    assert sent(pp=2, vpp=2)["pipeline"] == 4 * STREAM


def test_a_ring_for_global_layers_and_a_halo_for_sliding_ones():
    """Keys and values go to three other ranks forward and backward, their gradients, in fp32, all the way round."""
    key = (32 + 24) * 4
    own, halo = 64 * 64 * 2 * key, 2 * 64 * 2 * 31 * 4 * key  # tokens, heads; layers, sequences, chunks, reach, heads
    assert sent(cp=4)["context"] == 2 * (3 + 3 + 4) * own + 2 * halo
    assert sent(cp=4, recompute="full")["context"] == 2 * (3 + 3 + 3 + 4) * own + 3 * halo
    small = sent(cp=4, precision="bf16")["context"]
    assert small == 2 * (3 / 2 + 3 / 2 + 4) * own + 2 * halo / 2


def test_replicas_reduce_what_trains_and_gather_what_they_updated():
    count = parameters_on_rank(TINY, TrainerSection(tp=1, ep=2, dp=2), 0)
    dense, both = count.model - count.experts - count.router, sent(ep=2, dp=2)
    assert both["gradients"] == both["weights"] == 4 * dense / 2  # each expert lives on one rank alone
    assert sent(dp=2)["gradients"] == 4 * (dense + 2 * count.experts) / 2


def test_what_leaves_a_node_takes_the_network():
    h100, model = GPUS["h100"], preset("mimo-v2-flash")
    inside, across = (TrainerSection(tp=1, ep=ep, dp=16, precision="bf16") for ep in (8, 16))
    work = Workload(128, 32768)
    for layout, seconds in ((inside, 1 / h100.nvlink), (across, 7 / 15 / h100.nvlink + 8 / 15 / h100.network)):
        exchanged = step_communication(model, layout, work).experts
        assert step_cost(model, layout, work, h100).experts == pytest.approx(exchanged * seconds / LINK_EFFICIENCY)


def test_interleaving_and_more_micro_batches_shrink_the_bubble():
    model, h100 = preset("mimo-v2-flash"), GPUS["h100"]
    layout = TrainerSection(tp=4, ep=16, pp=4, cp=2, dp=4, precision="bf16", tokens_per_microbatch=16384)
    usual = step_cost(model, layout, Workload(128, 32768), h100)
    working = usual.compute + usual.tensor + usual.experts + usual.context + usual.pipeline
    assert usual.bubble == pytest.approx(3 / 32 * working)  # 3 other stages, 32 micro-batches
    more = step_cost(model, layout, Workload(512, 32768), h100)
    chunks = step_cost(model, layout.model_copy(update={"vpp": 2}), Workload(128, 32768), h100)
    assert chunks.bubble < 0.6 * usual.bubble and more.bubble == pytest.approx(usual.bubble)


def test_context_parallel_attention_computes_in_fp32():
    model, h100, work = preset("mimo-v2-flash"), GPUS["h100"], Workload(128, 32768)
    alone, spread = (TrainerSection(tp=1, ep=1, cp=cp, dp=32 // cp, precision="bf16") for cp in (1, 2))
    attention = 3 * 128 * float(attention_flops(model, 32768)) / 32 / COMPUTE_EFFICIENCY
    more = attention * (1 / h100.fp32_flops - 1 / h100.flops)
    difference = step_cost(model, spread, work, h100).compute - step_cost(model, alone, work, h100).compute
    assert difference == pytest.approx(more)


def test_multi_token_prediction_that_trains_takes_its_time():
    model, h100, work = preset("mimo-v2-flash"), GPUS["h100"], Workload(128, 32768)
    frozen, trained = (TrainerSection(tp=1, ep=1, dp=32, precision="bf16", mtp=mtp) for mtp in ("frozen", "train"))
    operations = [float(training_flops(model, 32768, mtp=mtp)) for mtp in (False, True)]
    ratio = step_cost(model, trained, work, h100).compute / step_cost(model, frozen, work, h100).compute
    assert ratio == pytest.approx(operations[1] / operations[0])
    assert ratio > 1.05
