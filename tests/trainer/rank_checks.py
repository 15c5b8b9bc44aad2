"""Runs on ranks: the same batches in several layouts; rank 0 writes what each layout computed.

Arguments: checkpoint directory, output directory, then layouts as tp,ep,dp."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import random_batch

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.mimo_v2 import read_config
from gagar_mcore.trainer.rank import build_groups, start_rank

STEPS = 3
CUTS = (10_000, 220, 70)  # micro-batch budgets: one forward pass, two, about five


def main() -> None:
    checkpoint, out, *layouts = sys.argv[1:]
    for index, layout in enumerate(layouts):
        tp, ep, dp = map(int, layout.split(","))
        trainer = TrainerSection(tp=tp, ep=ep, dp=dp, freeze_router=False)
        if index == 0:
            start_rank(trainer)
        else:
            from megatron.core import parallel_state

            parallel_state.destroy_model_parallel()
            build_groups(trainer)
        results = compute(Path(checkpoint), trainer)
        if dist.get_rank() == 0:
            torch.save(results, Path(out) / f"{layout}.pt")
    dist.barrier()


def compute(checkpoint: Path, trainer: TrainerSection) -> dict[str, object]:
    from gagar_mcore.trainer.policy import apply_batch, policy_parts
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import gather_tensors, load_tensors, local_tensors
    from gagar_mcore.trainer.update import run_model
    from gagar_mcore.weights.files import open_tensors

    model = read_config(checkpoint)
    policy = build_policy(model, trainer)
    load_tensors(policy.gpt, model, open_tensors(checkpoint))
    whole = trainer.model_copy(update={"tokens_per_microbatch": 10_000})
    results: dict[str, object] = {}
    if trainer.world_size == 1:
        (part,) = policy_parts(random_batch(0), whole)
        results["logits"] = run_model(policy.gpt, part.packed_tokens)[0].detach()
        results["bounds"] = part.cu_seqlens
    if trainer.dp == 1 and trainer.ep == trainer.tp:  # elsewhere a rank holds the sum of its own part of the gradient only
        results["gradients"] = [gradients(policy, trainer.model_copy(update={"tokens_per_microbatch": n})) for n in CUTS]
    results["metrics"] = [apply_batch(policy, random_batch(step), trainer, 1.0, step) for step in range(STEPS)]
    results["weights"] = {name: tensor.clone() for name, tensor in gather_tensors(local_tensors(policy.gpt), model)}
    return results


def gradients(policy, trainer: TrainerSection) -> tuple[int, dict[str, float], dict[str, torch.Tensor]]:
    """Number of micro-batches, summed statistics and reduced gradients by the checkpoint's names, for batch 0."""
    from functools import partial, reduce

    from gagar_mcore.ops.reference import PolicyStats
    from gagar_mcore.trainer.policy import part_loss, policy_parts
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors
    from gagar_mcore.trainer.update import accumulate_gradients

    parts = policy_parts(random_batch(0), trainer)
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss))
    local = {name: getattr(t, "main_grad", torch.zeros_like(t)) for name, t in local_tensors(policy.gpt).items()}
    whole = {name: tensor.clone() for name, tensor in gather_tensors(local, policy.model)}
    return len(parts), reduce(PolicyStats.combine, stats).metrics(), whole


if __name__ == "__main__":
    main()
