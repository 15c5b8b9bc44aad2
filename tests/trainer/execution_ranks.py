"""What ranks compute for test_execution.py: the same steps with other precision, recomputation and optimizer state."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conftest import make_run, publish_batches, random_batch
from rank_checks import WHOLE, change_layout, gradients, loaded_policy, three_steps, with_budget

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout

BF16, HOST, SMALL = "trainer.precision=bf16", "trainer.offload_optimizer=true", "trainer.optimizer.state_dtype=bf16"
PARK = "trainer.park=true"
WAYS = {
    "fp32": (),
    "fp32, selective": ("trainer.recompute=selective",),
    "fp32, full": ("trainer.recompute=full",),
    "fp32, host": (HOST,),
    "fp32, small moments": (SMALL,),
    "fp32, parked": (PARK,),
    "bf16": (BF16,),
    "bf16, parked": (BF16, PARK),
    "bf16, host": (BF16, HOST),
    "bf16, small moments, host": (BF16, SMALL, HOST),
    "bf16, small gradients": (BF16, "trainer.gradient_dtype=bf16"),
}
FEWER = ("fp32", "fp32, full", "fp32, host", "bf16", "bf16, parked", "bf16, host", "bf16, small moments, host")
LAYOUTS = {1: {"tp=1 ep=1 dp=1": WAYS}, 2: {"tp=2 ep=2 dp=1": FEWER, "tp=1 ep=1 dp=2": FEWER}}
# Adam magnifies the round-off of gradients that are nearly 0, so a larger eps.
FIELDS = ("trainer.optimizer.warmup_steps=0", "trainer.optimizer.eps=1e-6")


def execution(root: Path) -> dict[str, Any]:
    """`[layout][way]`. Two ranks also leave a run in `moved`, whose state went from the host to the device half-way, and one in
    `stayed`."""
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks == 2:
        train_run(root / "moved", [HOST, "train.steps=1"], ["train.steps=2"])
        train_run(root / "stayed", ["train.steps=2"])
    return {layout: every_way(root, layout.split(), ways) for layout, ways in LAYOUTS[ranks].items()}


def train_run(directory: Path, *stretches: list[str]) -> None:
    """A run in bf16, started anew with each change of its recipe."""
    change_layout(TrainerSection())
    from gagar_mcore.trainer.loop import train

    layout = RunLayout(directory)
    if dist.get_rank() == 0:
        publish_batches(make_run(directory), 1, 2)
    dist.barrier()
    for changes in stretches:
        train(layout, load_recipe(str(layout.recipe), [BF16, "train.checkpoint_every=1", *changes]), Fence(layout, 1))


def every_way(root: Path, layout: list[str], ways: Iterable[str]) -> dict[str, Any]:
    file, sizes = str(root / "run" / "recipe.yaml"), [f"trainer.{size}" for size in layout]
    change_layout(load_recipe(file, sizes).trainer)
    recipes = {way: load_recipe(file, [*sizes, *FIELDS, *WAYS[way]]) for way in ways}
    return {way: compute(root / "checkpoint", recipe) for way, recipe in recipes.items()} | {
        "bf16, rate 0": step_at_rate_zero(root / "checkpoint", load_recipe(file, [*sizes, BF16, "trainer.optimizer.lr=0.0"]))
    }


def compute(checkpoint: Path, recipe: Recipe) -> dict[str, Any]:
    """Three steps; of one pass before them the gradients and the calls of modules in the last layer; the optimizer's memory on
    all ranks."""
    policy = loaded_policy(checkpoint, recipe)
    calls = count_calls(policy.chunks[-1].decoder.layers[-1])
    _, _, summed = gradients(policy, with_budget(recipe.trainer, WHOLE))
    results = {
        "trainer": recipe.trainer.model_dump(),
        "gradients": summed,
        "calls": dict(calls),
        "left": left_when_parked(policy),
    }
    size = torch.tensor(sum(part.optimizer.state_bytes() for part in policy.optimizer.chained_optimizers))
    dist.all_reduce(size)
    return results | {"state bytes": int(size)} | three_steps(policy, recipe, WHOLE)


def left_when_parked(policy: Any) -> tuple[int, int]:
    """Bytes of weights and gradients that are in memory, and how many of them stay while the policy is parked."""
    from gagar_mcore.trainer.parking import gradients, held, parked

    def present() -> int:
        storages = (tensor.untyped_storage() for tensor in (*held(policy), *gradients(policy)))
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    before = present()
    with parked(policy):
        return before, present()


def count_calls(layer: Any) -> Counter[str]:
    calls: Counter[str] = Counter()
    modules = {"layer": layer, "core attention": layer.self_attention.core_attention, "experts": layer.mlp.experts}
    for name, module in modules.items():
        module.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    return calls


def step_at_rate_zero(checkpoint: Path, recipe: Recipe) -> dict[str, bool]:
    """Whether all ranks' weights are what they were, and their master weights are equal to them."""
    from gagar_mcore.trainer.policy import apply_batch

    policy = loaded_policy(checkpoint, recipe)
    parameters = [parameter for chunk in policy.chunks for parameter in chunk.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    apply_batch(policy, random_batch(0), recipe, 1)
    states = [item for part in policy.optimizer.chained_optimizers for item in part.optimizer.state.items()]
    kept = torch.tensor(all(map(torch.equal, before, parameters)), dtype=torch.int)
    masters = torch.tensor(all(torch.equal(state["master_param"], p.float()) for p, state in states), dtype=torch.int)
    for found in (kept, masters):
        dist.all_reduce(found, dist.ReduceOp.MIN)
    return {"weights": bool(kept), "masters": bool(masters)}
