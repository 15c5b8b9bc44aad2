import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import random_batch

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.packing import Limits
from gagar_mcore.trainer.parts import Parts, StepPlan, plan_step

TRAINER = TrainerSection(dp=2, tokens_per_microbatch=60)


class Part:
    def __init__(self, indices):
        self.indices = list(indices)


class Counted(np.ndarray):
    """A column that counts the entries taken from it."""

    read = 0

    def __getitem__(self, key):
        taken = super().__getitem__(key)
        self.read += taken.size
        return taken


def batch_and_plan(trainer: TrainerSection = TRAINER) -> tuple[Batch, StepPlan]:
    batch = random_batch(0)
    return batch, plan_step(batch.cu_seqlens, trainer, preset("tiny"))


def test_a_pass_has_one_part_in_memory():
    alive: list[weakref.ref[Part]] = []
    counts = []

    def build(indices):
        counts.append(sum(part() is not None for part in alive))
        alive.append(weakref.ref(part := Part(indices)))
        return part

    parts = Parts([[0], [1, 2], [3], []], build)
    passes = [list(map(lambda part: part.indices, parts)) for _ in range(2)]

    assert passes == [[[0], [1, 2], [3], []]] * 2
    assert counts == [0] * 8


def test_parts_are_found_by_index_and_slices_build_nothing():
    built = []
    parts = Parts([[0], [1, 2], [3]], lambda indices: built.append(indices) or Part(indices))

    assert len(parts[1:]) == 2 and built == []
    assert parts[1:][0].indices == parts[1].indices == [1, 2]
    assert parts[-1].indices == [3]
    with pytest.raises(IndexError):
        parts[3]


def test_a_rank_reads_the_tokens_of_its_own_sequences():
    from gagar_mcore.trainer.policy_part import policy_part

    batch, plan = batch_and_plan()
    names = ("tokens", "logprobs", "loss_mask", "error_mask")
    columns = {name: getattr(batch, name).view(Counted) for name in names}
    lengths = np.diff(batch.cu_seqlens)
    read = 0
    for groups in plan.packing.microbatches:
        parts = Parts(groups, partial(policy_part, replace(batch, **columns), plan.sequences, 1))
        own = sum(lengths[i] for indices in groups for i in indices)
        assert sum(part.layout.num_tokens for part in parts) == own
        read += own
        assert {column.read for column in columns.values()} == {read}
    assert read == len(batch.tokens)


def test_a_truncated_sequence_keeps_the_loss_weight_of_its_tokens():
    from gagar_mcore.trainer.policy_part import policy_part

    batch, whole = batch_and_plan()
    _, cut = batch_and_plan(TRAINER.model_copy(update={"max_tokens_per_sequence": 20, "overlong": "truncate"}))
    longest = int(np.diff(batch.cu_seqlens).argmax())
    before, after = (policy_part(batch, plan.sequences, 1, [longest]) for plan in (whole, cut))

    assert after.layout.num_tokens == 20 < before.layout.num_tokens
    torch.testing.assert_close(after.packed_tokens.tokens, before.packed_tokens.tokens[:20])
    torch.testing.assert_close(after.flags, before.flags[:20])
    torch.testing.assert_close(after.weights, before.weights)


def test_the_plan_fills_and_counts_as_the_layout_does():
    trainer = TRAINER.model_copy(update={"pp": 2, "vpp": 2, "cp": 2, "tokens_per_microbatch": 30})
    batch, plan = batch_and_plan(trainer)

    assert len(plan.packing.microbatches[0]) % 2 == 0
    assert plan.metrics()["tokens"] == len(batch.tokens)
    assert 0 < plan.metrics()["padding_share"] < 0.2


@pytest.mark.parametrize(("fp8", "multiple"), [("none", 4), ("delayed", 64), ("blockwise", 64), ("mxfp8", 128)])
def test_every_rank_of_a_tensor_group_gets_as_many_tokens_as_its_matrix_products_take(fp8, multiple):
    from gagar_mcore.trainer.policy_part import policy_part

    trainer = TrainerSection(tp=4, ep=1, precision="bf16", fp8=fp8, tokens_per_microbatch=60)
    batch, plan = batch_and_plan(trainer)
    parts = Parts(plan.packing.microbatches[0], partial(policy_part, batch, plan.sequences, trainer.tokens_multiple))
    counts = [len(part.packed_tokens.tokens) for part in parts]

    assert len(counts) > 4 and all(count % multiple == 0 for count in counts)
    assert plan.packing.padding_share == pytest.approx(1 - len(batch.tokens) / sum(counts))
    filled = Limits(60, cp=2, tokens_multiple=multiple).filled(np.array([0, multiple, 2 * multiple + 1]))
    assert filled.tolist() == [2 * multiple, 2 * multiple, 4 * multiple]  # on both context-parallel ranks together


@pytest.mark.timeout(600)  # the first test starts the ranks
def test_the_model_holds_as_many_parts_as_its_pipeline_is_deep(on_ranks):
    one, two = (on_ranks.layouts[f"memory-{stages}"]["alive"] for stages in (1, 2))
    interleaved = on_ranks.layouts["memory-2"]["interleaved"]

    assert len(one) == len(two) > 4 and len(interleaved) > 2 * 4
    assert set(one) == {1}
    assert max(two) == 2
    assert max(interleaved) == 2 * (2 - 1) + (2 - 1) * 2 + 1  # each of two chunks has its own of every micro-batch in flight
