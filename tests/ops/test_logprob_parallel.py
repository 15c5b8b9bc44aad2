"""Two ranks that hold half the vocabulary each, against one that holds all."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from logprob_cases import inputs

from gagar_mcore.ops.logprob import linear_logprobs

RANKS, VOCABULARY = 2, 40
HALF = VOCABULARY // RANKS
CASES = {"many": 23, "one": 1, "none": 0}
DEADLINE = 90
KEPT = {"entropy": "detached", "chunk_bytes": None}  # one block of logits holds all, and is not computed again


def case(tokens: int, first_shard_only: bool = False):
    hidden, weight, targets = inputs(tokens, VOCABULARY, 8, torch.float32)
    return hidden, weight, targets % HALF if first_shard_only else targets


def compute(hidden, weight, targets, entropy="differentiable", chunk_bytes=4000, **options):
    """Values, and gradients of a loss that weighs each row differently."""
    logprobs, entropies = linear_logprobs(
        hidden, weight, targets, temperature=0.7, entropy=entropy, chunk_bytes=chunk_bytes, **options
    )
    rows = torch.arange(len(logprobs)) + 1.0
    loss = (logprobs * rows.sin()).sum()
    if entropies.requires_grad:
        loss = loss + (entropies * rows.cos()).sum()
    return [logprobs.detach(), entropies.detach(), *torch.autograd.grad(loss, (hidden, weight))]


def on_rank(rank: int, root: Path) -> None:
    torch.set_num_threads(1)
    deadline = timedelta(seconds=DEADLINE)
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=RANKS, timeout=deadline)
    shard = slice(rank * HALF, (rank + 1) * HALF)
    results = {}
    for name, arguments in all_cases().items():
        hidden, weight, targets = arguments
        part = weight.detach()[shard].requires_grad_()
        results[name] = compute(hidden, part, targets, group=dist.group.WORLD)
        results[f"{name}, kept"] = compute(hidden, part, targets, **KEPT, group=dist.group.WORLD)
        results[f"{name}, unreduced"] = compute(hidden, part, targets, group=dist.group.WORLD, reduce_hidden_grad=False)
    try:
        linear_logprobs(hidden, part, torch.full((len(hidden),), VOCABULARY), group=dist.group.WORLD)
    except ValueError as error:
        results["out of range"] = str(error)
    try:
        hidden, _, targets = case(3)
        linear_logprobs(hidden, part[: HALF - rank], torch.full_like(targets, 2 * HALF - 2), group=dist.group.WORLD)
    except ValueError as error:
        results["unequal"] = str(error)
    alone = dist.new_group([0])
    try:
        linear_logprobs(hidden, part, targets % HALF, group=alone)
    except ValueError as error:
        results["outside"] = str(error)
    torch.save(results, root / f"{rank}.pt")
    dist.destroy_process_group()


def all_cases():
    sizes = {name: case(tokens) for name, tokens in CASES.items()}
    return {**sizes, "first shard": case(CASES["many"], first_shard_only=True)}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    root = tmp_path_factory.mktemp("logprob")
    mp.spawn(on_rank, (root,), nprocs=RANKS)
    return [torch.load(root / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("case", all_cases())
def test_two_shards_give_the_values_and_gradients_of_the_whole(on_ranks, case, kept):
    logprobs, entropy, grad_hidden, grad_weight = compute(*all_cases()[case], **(KEPT if kept else {}))
    name = f"{case}, kept" if kept else case
    shards = torch.cat([results[name][3] for results in on_ranks])

    for results in on_ranks:
        for value, expected in zip(results[name][:3], (logprobs, entropy, grad_hidden), strict=True):
            torch.testing.assert_close(value, expected, atol=5e-6, rtol=0)
    torch.testing.assert_close(shards, grad_weight, atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", all_cases())
def test_every_rank_gets_the_same_bits(on_ranks, name):
    one, other = (results[name][:3] for results in on_ranks)

    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_unreduced_gradients_of_the_hidden_states_are_parts_of_the_sum(on_ranks):
    whole = on_ranks[0]["many"][2]
    parts = [results["many, unreduced"][2] for results in on_ranks]

    torch.testing.assert_close(sum(parts), whole, atol=1e-6, rtol=0)
    assert all((part - whole).abs().max() > 1e-2 for part in parts)


def test_a_target_beyond_all_shards_is_refused_on_every_rank(on_ranks):
    for results in on_ranks:
        assert results["out of range"] == f"targets[0] is {VOCABULARY}, outside a vocabulary of {VOCABULARY}"


def test_a_group_without_this_rank_is_refused(on_ranks):
    member, other = on_ranks

    assert "outside" not in member
    assert other["outside"] == "this process is not a member of the group that the vocabulary is split over"


def test_unequal_shares_are_refused_on_every_rank(on_ranks):
    assert [results["unequal"] for results in on_ranks] == [
        f"weight: ranks hold [{HALF}, {HALF - 1}] rows of the vocabulary, and must hold equally many"
    ] * RANKS
