"""Runs on ranks: `rank_checks.py ROOT JOB...`. A job is a layout `tp,ep,dp` to compute the same batches in, or `sft`, or `train`.

ROOT holds `checkpoint`, `layouts` (rank 0 writes what each layout computed there), `data` to fine-tune on and `run`."""

import sys
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conftest import random_batch

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.models.mimo_v2 import read_config
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.sft.data import read_sft_data
from gagar_mcore.trainer.rank import build_groups, start_rank

STEPS = 3
WHOLE = 10_000
CUTS = (WHOLE, 220, 70)  # micro-batch budgets: one forward pass, two, five


def main() -> None:
    root, jobs = Path(sys.argv[1]), sys.argv[2:]
    for job in jobs:
        if job == "train":
            train_run(RunLayout(root / "run"))
            continue
        if job == "sft":
            fine_tune_run(root)
            continue
        tp, ep, dp = map(int, job.split(","))
        trainer = TrainerSection(tp=tp, ep=ep, dp=dp, freeze_router=False)
        change_layout(trainer)
        results = compute(root / "checkpoint", trainer)
        if dist.get_rank() == 0:
            torch.save(results, root / "layouts" / f"{job}.pt")
    dist.barrier()


def change_layout(trainer: TrainerSection) -> None:
    if not dist.is_initialized():
        return start_rank(trainer)
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    build_groups(trainer)


def train_run(layout: RunLayout) -> None:
    from gagar_mcore.trainer.loop import train

    recipe = load_recipe(str(layout.recipe))
    change_layout(recipe.trainer)
    train(layout, recipe, Fence(layout, 1))


def fine_tune_run(root: Path) -> None:
    from gagar_mcore.sft.finetune import export, fine_tune, metrics_writer
    from gagar_mcore.sft.train import sft_trainer

    ranks = dist.get_world_size()
    recipe = load_recipe(str(root / "run" / "recipe.yaml"), [f"trainer.tp={ranks}", f"trainer.ep={ranks}"])
    trainer = sft_trainer(recipe)
    change_layout(trainer)
    report = metrics_writer(root / f"sft-{ranks}.jsonl")
    policy = fine_tune(recipe, trainer, read_sft_data(root / "data"), root / "checkpoint", report)
    export(policy, root / "checkpoint", root / f"sft-{ranks}")


def compute(checkpoint: Path, trainer: TrainerSection) -> dict[str, Any]:
    from gagar_mcore.trainer.policy import apply_batch, policy_parts
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import gather_tensors, load_tensors, local_tensors
    from gagar_mcore.trainer.update import run_model
    from gagar_mcore.weights.files import open_tensors

    model = read_config(checkpoint)
    policy = build_policy(model, trainer)
    load_tensors(policy.gpt, model, open_tensors(checkpoint))
    results: dict[str, Any] = {}
    if trainer.world_size == 1:
        (part,) = policy_parts(random_batch(0), with_budget(trainer, WHOLE))
        results["logits"] = policy.gpt.output_layer(run_model(policy.gpt, part.packed_tokens))[0][:, 0].detach()
        results["bounds"] = part.cu_seqlens
    if trainer.dp == 1 and trainer.ep == trainer.tp:  # elsewhere a rank holds the sum of its own part of the gradient only
        results["gradients"] = [gradients(policy, with_budget(trainer, budget)) for budget in CUTS]
    results["metrics"] = [apply_batch(policy, random_batch(step), trainer, 1.0, step) for step in range(STEPS)]
    results["weights"] = {name: tensor.clone() for name, tensor in gather_tensors(local_tensors(policy.gpt), model)}
    return results


def with_budget(trainer: TrainerSection, budget: int) -> TrainerSection:
    return trainer.model_copy(update={"tokens_per_microbatch": budget})


def gradients(policy: Any, trainer: TrainerSection) -> tuple[int, dict[str, float], dict[str, torch.Tensor]]:
    """Number of micro-batches, summed statistics and reduced gradients by the checkpoint's names, for batch 0."""
    from gagar_mcore.trainer.policy import PartStats, part_loss, policy_parts
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors
    from gagar_mcore.trainer.update import accumulate_gradients

    parts = policy_parts(random_batch(0), trainer)
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss))
    local = {name: getattr(t, "main_grad", torch.zeros_like(t)) for name, t in local_tensors(policy.gpt).items()}
    whole = {name: tensor.clone() for name, tensor in gather_tensors(local, policy.model)}
    return len(parts), reduce(PartStats.combine, stats).metrics(), whole


if __name__ == "__main__":
    main()
