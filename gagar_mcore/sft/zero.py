"""Fine-tuning by DeepSpeed's ZeRO, for any causal language model that transformers loads. Imported after `zero_config.join`."""

import math
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.deepspeed import set_hf_deepspeed_config

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.sft.data import SftData
from gagar_mcore.sft.loop import Metrics
from gagar_mcore.sft.zero_config import zero_config
from gagar_mcore.sft.zero_files import publish_model, publish_state, restore_state
from gagar_mcore.sft.zero_part import row_loss, row_part
from gagar_mcore.trainer.packing import Limits, Packing, plan_microbatches
from gagar_mcore.trainer.parts import Parts
from gagar_mcore.trainer.sequences import StepSequences, step_sequences


class _Sharding:
    """What transformers asks before it loads a model: with stage 3 no rank ever holds all of it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_zero3(self) -> bool:
        return bool(self.config["zero_optimization"]["stage"] == 3)


class ZeroTrainee:
    """`sft.loop.Trainee`. start: a checkpoint directory in Hugging Face format."""

    def __init__(self, recipe: Recipe, start: Path, layout: RunLayout, fence: Fence) -> None:
        self._trainer, self._start, self._layout, self._fence = recipe.trainer, start, layout, fence
        self._stage = recipe.sft.deepspeed.stage
        config = zero_config(recipe)
        self._sharding = _Sharding(config)  # transformers keeps but a weak reference
        set_hf_deepspeed_config(self._sharding)
        model = load_model(recipe, start)
        self._hidden = int(model.config.hidden_size)
        groups = decayed(model, recipe.sft.weight_decay)
        self._engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
        self._device = self._engine.device

    def restore(self) -> int:
        return restore_state(self._engine, self._layout, self._stage)

    def train_step(self, data: SftData, step: int, lr: float) -> Metrics:
        started = time.perf_counter()
        self._engine.train()
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        parts, sequences, packing = self._parts(data, step)
        total = torch.zeros([], device=self._device)
        for index, part in enumerate(parts):
            self._engine.set_gradient_accumulation_boundary(index == len(parts) - 1)
            loss = row_loss(self._engine, part)
            self._engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)  # ranks' gradients are averaged
            total += loss.detach()
        mean = _finite("loss", _over_ranks(total))
        self._engine.step()
        seconds = time.perf_counter() - started
        metrics = {
            "loss": mean,
            "grad_norm": _finite("norm of the gradient", self._engine.get_global_grad_norm()),
            "lr": lr,
            "tokens": float(sequences.lengths.sum()),
            "sequences": float(len(sequences.lengths)),
            **packing.metrics(),
            **sequences.metrics(),
            "tokens_per_second": float(sequences.lengths.sum()) / seconds,
        }
        return {f"sft/{name}": value for name, value in metrics.items()}

    @torch.no_grad()
    def loss(self, data: SftData) -> float:
        self._engine.eval()
        total = torch.zeros([], device=self._device)
        for step in range(data.num_steps):
            parts, _, _ = self._parts(data, step)
            for part in parts:
                total += data.denominator(step) * row_loss(self._engine, part)
        return _over_ranks(total) / float(data.loss_weights.sum(dtype=np.float64))

    def save(self, step: int) -> None:
        publish_state(self._engine, self._layout, self._fence, step, self._stage)

    def export(self, target: Path) -> None:
        publish_model(self._engine.module, self._start, target, self._fence, self._gathered)

    def finish(self) -> None:
        dist.barrier()

    def _parts(self, data: SftData, step: int) -> tuple[Parts[Any], StepSequences, Packing]:
        """This rank's micro-batches; every rank has as many."""
        sequences = step_sequences(data.bounds(step), self._trainer)
        flops = sequences.lengths * (6.0 * self._hidden + sequences.lengths)  # of a dense layer, up to a factor
        packing = plan_microbatches(sequences.lengths, flops, Limits(self._trainer.tokens_per_microbatch, self._trainer.dp))
        build = partial(row_part, data, sequences, data.denominator(step), self._device)
        return Parts(packing.microbatches[dist.get_rank()], build), sequences, packing

    def _gathered(self, parameter: Tensor) -> AbstractContextManager[Any]:
        """The whole parameter on every rank while it lasts. A collective."""
        gathered: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters([parameter], enabled=self._stage == 3)
        return gathered


def load_model(recipe: Recipe, start: Path) -> Any:
    dtype = torch.bfloat16 if recipe.trainer.precision == "bf16" else torch.float32
    attention = recipe.sft.deepspeed.attention
    model = AutoModelForCausalLM.from_pretrained(start, dtype=dtype, attn_implementation=attention, local_files_only=True)
    if recipe.trainer.recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def decayed(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters: matrices decay, vectors (norms and biases) do not."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter in model.parameters():
        groups[len(getattr(parameter, "ds_shape", parameter.shape)) > 1].append(parameter)
    return [{"params": held, "weight_decay": weight_decay * decays} for decays, held in groups.items() if held]


def _over_ranks(total: Tensor) -> float:
    dist.all_reduce(total)
    return float(total)


def _finite(what: str, value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise RuntimeError(f"the {what} is not finite: look at the loss of the steps before, and at the learning rate")
    return number
