"""`layout_ranks.py ROOT WAY:LAYOUT...` computes the same batches in every layout and writes `ROOT/WAY:LAYOUT.pt`.

A way is a model and how it trains, see `MODELS` and `FIELDS`. A layout is written as fields of the trainer section, `tp2 pp2
vpp2`; what is not named is 1; `full` or `selective` recompute. The processes of one layout after another are forked from this
one, which has imported what they need."""

import gc
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from conftest import RECIPE, random_batch, sft_data

from gagar_mcore.config.learning import LossSection, OptimizerSection, TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import attention_pattern, preset
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.layout import check_layout
from gagar_mcore.trainer.rank import join, prepare

STEPS = 3
SEQUENCES = 6
SIZES = {"vocab_size": 512, "hidden_size": 64, "ffn_size": 128, "moe_ffn_size": 32, "num_experts": 8, "top_k": 2}
MODELS = {
    "mimo_v2": replace(preset("tiny"), num_heads=8, kv_heads=4, sliding_kv_heads=8, head_dim=16, v_head_dim=12, **SIZES),
    "qwen3_moe": replace(
        preset("qwen3-30b-a3b"),
        num_heads=4,
        kv_heads=2,
        sliding_kv_heads=2,
        head_dim=16,
        v_head_dim=16,
        layer_types=attention_pattern(4, range(4)),
        moe_layers=(True,) * 4,
        **SIZES,
    ),
}

MTP = replace(MODELS["mimo_v2"], mtp_layers=2)
MODELS |= {"mtp": MTP, "sft": MTP, "bf16": MODELS["mimo_v2"], "bf16 mtp": MTP}
MODELS |= dict.fromkeys(("replay", "ppo", "ppo replay", "gspo"), MODELS["mimo_v2"])
PPO = {"minibatches": 2, "loss": LossSection(name="ppo", old="current", kl_coef=0.1)}
# In bf16 a router would choose otherwise where two experts score nearly alike.
BF16 = {"precision": "bf16", "routing": "replay"}
FIELDS: dict[str, dict[str, Any]] = {
    "mtp": {"mtp": "train"},
    "sft": {"mtp": "train"},
    "replay": {"routing": "replay"},
    "ppo": PPO,
    "ppo replay": {"routing": "replay", **PPO},
    "gspo": {"loss": LossSection(name="gspo", negative_bounds=(0.8, 1.2))},
    "bf16": BF16,
    "bf16 mtp": {"mtp": "train", **BF16},
}


def way_of(job: str) -> str:
    return job.split(":")[0]


def model_of(job: str) -> ModelConfig:
    return MODELS[way_of(job)]


def layout_of(job: str) -> TrainerSection:
    way, layout = job.split(":")
    sizes: dict[str, Any] = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", layout)}
    sizes |= FIELDS.get(way, {})
    for word in {"full", "selective"} & set(layout.split()):
        sizes["recompute"] = word
    fields: dict[str, Any] = {"tp": 1, "ep": 1, "freeze_router": False, "tokens_per_microbatch": 80, "step_timeout_s": 60.0}
    fields["optimizer"] = OptimizerSection(eps=1e-6)  # Adam magnifies the round-off of gradients near 0
    return TrainerSection(**{**fields, **sizes})


def main() -> None:
    root = Path(sys.argv[1])
    (root / "recipe.yaml").write_text(RECIPE)
    prepare(threads=1)
    import gagar_mcore.sft.finetune
    import gagar_mcore.trainer.policy  # noqa: F401  (once, for all ranks)

    gc.freeze()  # or each rank would copy what it only shares
    for job in sys.argv[2:]:
        check_layout(layout_of(job), model_of(job))
        start_ranks(layout_of(job).world_size, run_job, job, root)


def start_ranks(size: int, run: Callable[..., None], *arguments: Any) -> None:
    """Fork as many ranks, each of which does `run(*arguments)`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(size)}
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(rank, run, *arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if failed := [rank for rank, process in enumerate(ranks) if process.exitcode]:
        raise SystemExit(f"{arguments[0]}: ranks {failed} of {size} failed")


def run_rank(rank: int, run: Callable[..., None], *arguments: Any) -> None:
    die_with_parent()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    run(*arguments)
    dist.barrier()


def run_job(job: str, root: Path) -> None:
    trainer = layout_of(job)
    join(trainer)
    recipe = load_recipe(str(root / "recipe.yaml")).model_copy(update={"trainer": trainer})
    results = compute(model_of(job), recipe, fine_tuned if way_of(job) == "sft" else reinforced)
    if dist.get_rank() == 0:
        torch.save(results, root / f"{job}.pt")


def compute(model: ModelConfig, recipe: Recipe, train: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What `train` gives of a policy and its reference, and the weights after it."""
    from gagar_mcore.trainer.scoring import load_reference
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import gather_tensors, load_tensors, local_tensors

    policy = build_policy(model, recipe.trainer)
    reference = load_reference(policy, random_tensors(model, seed=5)) if recipe.trainer.loss.kl_coef else None
    load_tensors(policy.chunks, model, telling_tensors(model))
    trained = train(policy, recipe, reference)
    local = local_tensors(policy.chunks)
    weights = {name: tensor.clone() for name, tensor in gather_tensors(local, model)}
    before = {name: tensor.clone() for name, tensor in local.items()}
    load_tensors(policy.chunks, model, weights.__getitem__)
    same = torch.tensor([torch.equal(before[name], local[name]) for name in local]).all().int()
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return {**trained, "weights": weights, "replicas agree": bool(same), "bytes": allocated_bytes(policy)}


def reinforced(policy: Any, recipe: Recipe, reference: Any) -> dict[str, Any]:
    """Statistics and gradients of batch 0, and metrics of the steps on batches 1 to 3."""
    from gagar_mcore.trainer.parts import plan_step
    from gagar_mcore.trainer.policy import apply_batch, with_scores
    from gagar_mcore.trainer.policy_loss import part_loss, total_stats
    from gagar_mcore.trainer.policy_part import policy_parts
    from gagar_mcore.trainer.update import accumulate_gradients

    trainer, batch = recipe.trainer, routed_batch(0, policy.model)
    parts = policy_parts(batch, plan_step(batch.cu_seqlens, trainer, policy.model), trainer)
    (scored,) = with_scores(policy, [parts], recipe, reference)
    stats = accumulate_gradients(policy, scored, partial(part_loss, trainer.loss, None))
    gradients = whole_gradients(policy)
    steps = [apply_batch(policy, routed_batch(step, policy.model), recipe, step, reference) for step in range(1, STEPS + 1)]
    return {"stats": total_stats(stats).metrics(), "gradients": gradients, "metrics": steps}


def fine_tuned(policy: Any, recipe: Recipe, _: Any) -> dict[str, Any]:
    """Loss and gradients of the first step on demonstrations, and metrics of all three."""
    from gagar_mcore.sft.finetune import part_loss, sft_parts, train_step
    from gagar_mcore.trainer.parts import plan_step
    from gagar_mcore.trainer.update import accumulate_gradients, over_last_stages

    trainer, data = recipe.trainer, sft_data()
    plan = plan_step(data.bounds(0), trainer, policy.model)
    losses = accumulate_gradients(policy, sft_parts(data, plan, trainer, 0), part_loss)
    loss, gradients = over_last_stages(sum(losses, torch.zeros([]))), whole_gradients(policy)
    steps = [train_step(policy, data, trainer, step, trainer.optimizer.lr) for step in range(data.num_steps)]
    return {"stats": {"loss": float(loss)}, "gradients": gradients, "metrics": steps}


def allocated_bytes(policy: Any) -> list[tuple[int, int, int, int]]:
    """Of each rank: its pipeline stage, bytes of its experts, of all its other weights, and of the optimizer's state."""
    from megatron.core import parallel_state

    tensors = [item for chunk in policy.chunks for item in (*chunk.named_parameters(), *chunk.named_buffers())]
    sizes = {True: 0, False: 0}
    for name, tensor in tensors:
        if not name.endswith("local_tokens_per_expert"):  # a statistic
            sizes[".experts." in name] += tensor.nbytes
    ranks: list[Any] = [None] * dist.get_world_size()
    state = sum(part.optimizer.state_bytes() for part in policy.optimizer.chained_optimizers)
    dist.all_gather_object(ranks, (parallel_state.get_pipeline_model_parallel_rank(), sizes[True], sizes[False], state))
    return ranks


def telling_tensors(model: ModelConfig) -> Any:
    """Random weights in which selection bias and sinks matter, and norms differ between channels."""
    read = random_tensors(model, seed=5)
    tensors = {name: read(name) for name in tensor_shapes(model)}
    for name, tensor in tensors.items():
        ramp = torch.arange(len(tensor)) % 3 - 1.0
        if name.endswith("e_score_correction_bias"):
            tensor += 0.02 * ramp
        elif name.endswith("attention_sink_bias"):
            tensor += 1.0 + ramp
        elif "norm" in name:
            tensor += 0.1 * ramp
    return tensors.__getitem__


def whole_gradients(policy: Any) -> dict[str, torch.Tensor]:
    """What was accumulated, by the checkpoint's names, whole on every rank."""
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors

    for chunk in policy.ddp:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            gather_shards(buffer)
    local = {name: getattr(t, "main_grad", torch.zeros_like(t)) for name, t in local_tensors(policy.chunks).items()}
    return {name: tensor.clone() for name, tensor in gather_tensors(local, policy.model)}


def routed_batch(seed: int, model: ModelConfig) -> Batch:
    """With experts at random, unknown for one token in five, for whoever replays them."""
    batch, rng = random_batch(seed, SEQUENCES), np.random.default_rng(seed)
    shape = (len(batch.tokens), sum(model.moe_layers), model.num_experts)
    experts = rng.random(shape).argsort(-1)[..., : model.top_k].astype(np.int16)
    experts[rng.random(len(experts)) < 0.2] = -1
    return replace(batch, experts=experts)


def gather_shards(buffer: Any) -> None:
    """Replace what each data-parallel rank has summed alone by what the others have reduced."""
    group = buffer.data_parallel_group
    for bucket in buffer.buckets:
        reduced = bucket.grad_data.view(group.size(), -1)[group.rank()].clone()
        dist.all_gather_into_tensor(bucket.grad_data, reduced, group=group)


if __name__ == "__main__":
    main()
