"""Runs on ranks: `rank_checks.py ROOT JOB...`. A job is a layout `tp,ep,dp` to compute the same batches in, or `execution`,
`bit flip`, `losses`, `memory`, `quantise`, `replay`, `sft` or `train`.

ROOT holds `checkpoint`, `fused`, the same weights for the fine-tuning of two ranks, `layouts` (rank 0 writes what each layout
computed there), `data` to fine-tune on, `sampled`, the columns of a batch from the engine, and `run`."""

import json
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from conftest import random_batch

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.models.huggingface import read_config
from gagar_mcore.records.batch import Batch
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.sft.data import read_sft_data
from gagar_mcore.trainer.rank import build_groups, start_rank

STEPS = 3
WHOLE = 10_000
CUTS = (WHOLE, 220, 70)  # micro-batch budgets: one forward pass, two, five
BUDGETS = {1: (WHOLE, 70), 2: (220,)}  # of the losses, by data-parallel ranks
LOSSES = {
    "mimo, shaped": ("method.behaviour_shaping=true",),
    "ppo": ("trainer.loss.name=ppo",),
    "ppo, current": ("trainer.loss.name=ppo", "trainer.loss.old=current", "trainer.loss.tis_cap=1.05"),
    "ppo, divergence": ("trainer.loss.name=ppo", "trainer.loss.kl_coef=0.1"),
    "ppo, two updates": ("trainer.loss.name=ppo", "trainer.loss.old=current", "trainer.minibatches=2"),
    "gspo": ("trainer.loss.name=gspo", "trainer.loss.positive_bounds=[0.95, 1.05]"),
    "cispo": ("trainer.loss.name=cispo", "trainer.loss.positive_bounds=[0.9, 1.1]"),
}
# Passes that are no training, and layers that are computed twice.
COUNTED = (("replay", "biased", "loss.kl_coef=0.1"), ("replay", "biased", "loss.kl_coef=0.1", "recompute=full"))
BAD = {
    "nan": ("logprobs", np.nan),
    "infinite": ("logprobs", -np.inf),
    "advantage": ("advantages", np.nan),
    "token": ("tokens", 512),
    "mark": ("loss_mask", 2),
    "error": ("error_mask", 3),
    "expert": ("experts", 8),
    "expert twice": ("experts", 5),
    "expert unknown": ("experts", -1),
}


def main() -> None:
    root, jobs = Path(sys.argv[1]), sys.argv[2:]
    for job in jobs:
        if job == "train":
            train_run(RunLayout(root / "run"))
            continue
        if job == "sft":
            fine_tune_run(root)
            continue
        if job == "bit flip":
            keep(bit_flip(root), root / "layouts" / "bit flip.pt")
            continue
        if job == "execution":
            keep(execution(root), root / "layouts" / f"execution-{dist.get_world_size()}.pt")
            continue
        if job == "losses":
            keep(every_loss(root), root / "layouts" / f"losses-{dist.get_world_size()}.pt")
            continue
        if job == "replay":
            keep(replayed(root), root / "layouts" / "replay.pt")
            continue
        if job == "quantise":
            keep(quantised(root), root / "layouts" / "quantise.pt")
            continue
        if job == "memory":
            keep(in_memory(root), root / "layouts" / f"memory-{dist.get_world_size()}.pt")
            continue
        tp, ep, dp = map(int, job.split(","))
        trainer = TrainerSection(tp=tp, ep=ep, dp=dp, freeze_router=False)
        change_layout(trainer)
        recipe = load_recipe(str(root / "run" / "recipe.yaml")).model_copy(update={"trainer": trainer})
        keep(compute(root / "checkpoint", recipe), root / "layouts" / f"{job}.pt")
    dist.barrier()


def keep(results: dict[str, Any], path: Path) -> None:
    if dist.get_rank() == 0:
        torch.save(results, path)


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


def bit_flip(root: Path) -> dict[str, Any]:
    """What each rank says where a weight of the last rank is none after a step, as after a fault of its memory; what is left."""
    from gagar_mcore.trainer import loop

    apply_batch = loop.apply_batch

    def with_fault(policy: Any, *rest: Any) -> dict[str, float]:
        metrics = apply_batch(policy, *rest)
        if dist.get_rank() == dist.get_world_size() - 1:
            policy.chunks[0].decoder.layers[2].mlp.experts.local_experts[1].linear_fc2.weight.data[3] = torch.nan
        return metrics

    run = RunLayout(root / "faulty")
    recipe = load_recipe(str(run.recipe), ["train.steps=1"])
    change_layout(recipe.trainer)
    loop.apply_batch, own = with_fault, "none"
    try:
        loop.train(run, recipe, Fence(run, 1))
    except RuntimeError as error:
        own = str(error)
    loop.apply_batch = apply_batch
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, own)
    return {"said": said, "left": sorted(path.name for path in (*run.root.glob("*/*"), *run.step(1).iterdir()))}


def fine_tune_run(root: Path) -> None:
    from gagar_mcore.sft.loop import fine_tune
    from gagar_mcore.sft.megatron import MegatronTrainee
    from gagar_mcore.sft.train import sft_trainer

    ranks = dist.get_world_size()
    recipe = load_recipe(str(root / "run" / "recipe.yaml"), [f"trainer.tp={ranks}", f"trainer.ep={ranks}"])
    trainer = sft_trainer(recipe)
    change_layout(trainer)
    layout, start = RunLayout(root / f"sft-run-{ranks}"), root / ("fused" if ranks == 2 else "checkpoint")
    trainee = MegatronTrainee(recipe, trainer, start, layout, Fence(layout, 1))
    lines: list[str] = []

    def report(step: int, metrics: dict[str, float]) -> None:
        lines.append(json.dumps({"step": step, **metrics}))

    fine_tune(trainee, recipe.sft, read_sft_data(root / "data"), None, layout, report)
    trainee.export(root / f"sft-{ranks}")
    if dist.get_rank() == 0:
        (root / f"sft-{ranks}.jsonl").write_text("\n".join(lines))


def execution(root: Path) -> dict[str, Any]:
    import execution_ranks

    return execution_ranks.execution(root)


def quantised(root: Path) -> dict[Any, Any]:
    import quantise_ranks

    return quantise_ranks.quantised(root)


def every_loss(root: Path) -> dict[str, Any]:
    """`[loss][budget]`: what three steps give on one rank, or on data-parallel ones."""
    ranks = int(os.environ["WORLD_SIZE"])
    fields = ["trainer.tp=1", "trainer.ep=1", f"trainer.dp={ranks}"]
    fields.append("trainer.optimizer.eps=1e-6")  # Adam magnifies the round-off of gradients that are nearly 0
    recipes = {name: load_recipe(str(root / "run" / "recipe.yaml"), [*fields, *changes]) for name, changes in LOSSES.items()}
    change_layout(recipes["ppo"].trainer)
    refused = refusals(loaded_policy(root / "checkpoint", recipes["ppo"]), recipes["ppo"])
    return {"refusals": refused} | {
        name: {budget: steps_from(root / "checkpoint", recipe, budget) for budget in BUDGETS[ranks]}
        for name, recipe in recipes.items()
    }


def steps_from(checkpoint: Path, recipe: Recipe, budget: int) -> dict[str, Any]:
    """Three steps of the checkpoint."""
    policy, reference = policy_and_reference(checkpoint, recipe)
    return three_steps(policy, recipe, budget, reference)


def policy_and_reference(checkpoint: Path, recipe: Recipe) -> tuple[Any, Any]:
    """The same weights; None where the loss needs no reference."""
    from gagar_mcore.trainer.scoring import load_reference
    from gagar_mcore.weights.published import open_checkpoint

    policy = loaded_policy(checkpoint, recipe)
    return policy, load_reference(policy, open_checkpoint(checkpoint)) if recipe.trainer.loss.kl_coef else None


def replayed(root: Path) -> dict[tuple[str, ...], dict[str, float]]:
    """`[routing, routers, field]`: metrics of a step on what the engine sampled with these weights. Biased routers choose
    otherwise."""
    from gagar_mcore.records.columns import open_columns
    from gagar_mcore.trainer.policy import apply_batch

    columns = open_columns(root / "sampled")
    results = {}
    for routing, routers, *changes in (*product(("free", "replay"), ("same", "biased")), *COUNTED):
        fields = ["trainer.tp=1", "trainer.ep=1", f"trainer.routing={routing}", *(f"trainer.{change}" for change in changes)]
        recipe = load_recipe(str(root / "run" / "recipe.yaml"), fields)
        change_layout(recipe.trainer)
        policy, reference = policy_and_reference(root / "checkpoint", recipe)
        for layer in policy.chunks[-1].decoder.layers[1:] if routers == "biased" else ():
            layer.mlp.router.expert_bias += torch.arange(8) % 3
        results[routing, routers, *changes] = apply_batch(policy, Batch(**columns), recipe, 1, reference)
    return results


def in_memory(root: Path) -> dict[str, list[int]]:
    """Of a pipeline of all ranks, whose stages interleave or not."""
    stages = int(os.environ["WORLD_SIZE"])
    alive = parts_in_memory(root, [f"trainer.pp={stages}"])
    return {"alive": alive, "interleaved": parts_in_memory(root, [f"trainer.pp={stages}", "trainer.vpp=2"]) if stages > 1 else []}


def parts_in_memory(root: Path, layout: list[str]) -> list[int]:
    """Of each micro-batch on the first stage: how many there are once it is built, itself included."""
    from gagar_mcore.trainer.parts import Parts
    from gagar_mcore.trainer.policy_loss import part_loss
    from gagar_mcore.trainer.update import accumulate_gradients

    recipe = load_recipe(str(root / "run" / "recipe.yaml"), ["trainer.tp=1", "trainer.ep=1", *layout])
    change_layout(recipe.trainer)
    policy = loaded_policy(root / "checkpoint", recipe)
    parts = parts_of(random_batch(0), with_budget(recipe.trainer, 70), policy)
    built: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def build(indices: Sequence[int]) -> Any:
        part = parts.build(indices)
        built.append(weakref.ref(part.packed_tokens.tokens))
        alive.append(sum(tokens() is not None for tokens in built))
        return part

    accumulate_gradients(policy, Parts(parts.groups, build), partial(part_loss, recipe.trainer.loss, None))
    return alive


def refusals(policy: Any, recipe: Recipe) -> dict[str, Any]:
    """What a step says of what cannot be trained on, and whether it left the weights alone."""
    from gagar_mcore.trainer.policy import apply_batch

    replay = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"routing": "replay"})})

    def attempt(batch: Batch, recipe: Recipe = replay) -> str:
        try:
            apply_batch(policy, batch, recipe, 1)
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "accepted"

    batch, head = random_batch(1), policy.chunks[-1].output_layer.weight
    said: dict[str, Any] = {"no experts": attempt(batch)}
    batch = replace(batch, experts=np.full((len(batch.tokens), 3, 2), [4, 5], np.int16))
    said["fewer experts"] = attempt(replace(batch, experts=batch.experts[:, :2]))
    for case, (name, entry) in BAD.items():
        column = np.array(getattr(batch, name))
        column.flat[-2 if case == "expert twice" else -1] = entry  # on one data-parallel rank alone
        said[case] = attempt(replace(batch, **{name: column}))
    mask = batch.loss_mask.copy()
    mask[batch.cu_seqlens[-2]] = 1
    said["first"] = attempt(replace(batch, loss_mask=mask))
    with torch.no_grad():
        head[0] = torch.inf
    said["an infinite weight"] = attempt(batch, recipe)
    others = (parameter for parameter in policy.chunks[-1].parameters() if parameter is not head)
    return said | {"weights": [bool(parameter.isfinite().all()) for parameter in others]}


def three_steps(policy: Any, recipe: Recipe, budget: int, reference: Any = None) -> dict[str, Any]:
    from gagar_mcore.trainer.parking import parked
    from gagar_mcore.trainer.policy import apply_batch
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors

    recipe = recipe.model_copy(update={"trainer": with_budget(recipe.trainer, budget)})
    metrics = []
    for step in range(1, STEPS + 1):
        with parked(policy, recipe.trainer.park):
            batch = random_batch(step)
        metrics.append(apply_batch(policy, batch, recipe, step, reference))
    weights = {name: tensor.clone() for name, tensor in gather_tensors(local_tensors(policy.chunks), policy.model)}
    return {"metrics": metrics, "weights": weights}


def loaded_policy(checkpoint: Path, recipe: Recipe) -> Any:
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import load_tensors
    from gagar_mcore.weights.published import open_checkpoint

    policy = build_policy(read_config(checkpoint), recipe.trainer)
    load_tensors(policy.chunks, policy.model, open_checkpoint(checkpoint))
    return policy


def compute(checkpoint: Path, recipe: Recipe) -> dict[str, Any]:
    from gagar_mcore.trainer.update import run_model

    trainer = recipe.trainer
    policy = loaded_policy(checkpoint, recipe)
    results: dict[str, Any] = {}
    if trainer.world_size == 1:
        (part,) = parts_of(random_batch(0), with_budget(trainer, WHOLE), policy)
        results["logits"] = policy.chunks[-1].output_layer(run_model(policy.chunks[-1], part.packed_tokens))[0][:, 0].detach()
        results["bounds"] = part.layout.cu_seqlens
    if trainer.dp == 1 and trainer.ep == trainer.tp:  # elsewhere a rank holds the sum of its own part of the gradient only
        results["gradients"] = [gradients(policy, with_budget(trainer, budget)) for budget in CUTS]
    return results | three_steps(policy, recipe, trainer.tokens_per_microbatch)


def with_budget(trainer: TrainerSection, budget: int) -> TrainerSection:
    return trainer.model_copy(update={"tokens_per_microbatch": budget})


def parts_of(batch: Batch, trainer: TrainerSection, policy: Any) -> Any:
    from gagar_mcore.trainer.parts import plan_step
    from gagar_mcore.trainer.policy_part import policy_parts

    return policy_parts(batch, plan_step(batch.cu_seqlens, trainer, policy.model), trainer)


def gradients(policy: Any, trainer: TrainerSection) -> tuple[int, dict[str, float], dict[str, torch.Tensor]]:
    """Number of micro-batches, summed statistics and reduced gradients by the checkpoint's names, for batch 0."""
    from gagar_mcore.trainer.policy_loss import PartStats, part_loss
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors
    from gagar_mcore.trainer.update import accumulate_gradients

    parts = parts_of(random_batch(0), trainer, policy)
    stats = accumulate_gradients(policy, parts, partial(part_loss, trainer.loss, None))
    local = {name: getattr(t, "main_grad", torch.zeros_like(t)) for name, t in local_tensors(policy.chunks).items()}
    whole = {name: tensor.clone() for name, tensor in gather_tensors(local, policy.model)}
    return len(parts), reduce(PartStats.combine, stats).metrics(), whole


if __name__ == "__main__":
    main()
