"""Whether two ways to run one model agree: the same weights and packed sequences, logits and gradients compared.
Imported after `rank.start_rank`."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.backends import Backend
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.init import random_tensors
from gagar_mcore.records.batch import Batch
from gagar_mcore.trainer.parts import plan_step
from gagar_mcore.trainer.policy_part import policy_parts
from gagar_mcore.trainer.setup import build_policy
from gagar_mcore.trainer.shards import gather_tensors, load_tensors, local_tensors
from gagar_mcore.trainer.update import run_model, scored_logprobs
from gagar_mcore.weights.files import TensorReader

LOGITS_BOUND, GRADIENTS_BOUND = 0.02, 0.1  # about three times what bf16 rounds off the tiny model on a CPU
LENGTHS = (70, 3, 33, 50, 64)
GAIN = 4.0  # of all matrices, so that every layer has its part in the logits
MARKS = (40.0, 30.0)  # in the embedding, of the experts that a token goes to
ROUTER = 0.3


@dataclass(frozen=True, slots=True)
class Outcome:
    """logits `[T, vocab]` float32; gradients by the checkpoint's names, float32."""

    logits: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """Norms of differences over norms: of the logits, and of the gradient of the tensor `worst`, where it is largest."""

    logits: float
    gradients: float
    worst: str

    @property
    def is_rounding(self) -> bool:
        """Not so where a number is none."""
        return self.logits <= LOGITS_BOUND and self.gradients <= GRADIENTS_BOUND

    def __str__(self) -> str:
        return (
            f"logits differ by {self.logits:.4f} (bound {LOGITS_BOUND}), gradients by up to {self.gradients:.4f} "
            f"(bound {GRADIENTS_BOUND}, {self.worst})"
        )


def compute(model: ModelConfig, trainer: TrainerSection, backend: Backend) -> Outcome:
    """On one rank, with `parity_tensors` and `parity_batch`."""
    policy = build_policy(model, trainer, backend=backend)
    load_tensors(policy.chunks, model, parity_tensors(model))
    batch = parity_batch(model)
    parts = policy_parts(batch, plan_step(batch.cu_seqlens, trainer, model), trainer)
    (gpt,), (part,) = policy.chunks, parts
    hidden = run_model(gpt, part.packed_tokens)
    logits = gpt.output_layer(hidden)[0][:, 0]
    logprobs, _ = scored_logprobs(gpt, hidden, part.packed_tokens, temperature=1.0)
    (logprobs * torch.arange(len(logprobs), device=logprobs.device).cos()).mean().backward()
    local = {
        name: getattr(tensor, "main_grad", torch.zeros_like(tensor)) for name, tensor in local_tensors(policy.chunks).items()
    }
    return Outcome(logits.detach().float(), {name: tensor.float().clone() for name, tensor in gather_tensors(local, model)})


def compare(outcome: Outcome, reference: Outcome) -> Difference:
    gradients = {name: _relative(outcome.gradients[name], tensor) for name, tensor in reference.gradients.items()}
    worst = max(gradients, key=lambda name: math.inf if math.isnan(gradients[name]) else gradients[name])
    return Difference(_relative(outcome.logits, reference.logits), gradients[worst], worst)


def parity_tensors(model: ModelConfig) -> TensorReader:
    """Random weights on the grid of bf16. Rounding changes the experts of no token, which would change its logits altogether:
    its embedding marks them, far above all that layers add, and routers read nothing but the marks."""
    random = random_tensors(model, seed=3)

    def read(name: str) -> Tensor:
        tensor = random(name)
        if name == "model.embed_tokens.weight":
            tensor = _marked(tensor / model.init_std, model.num_experts)
        elif name.endswith("mlp.gate.weight"):
            tensor = ROUTER * torch.eye(model.num_experts, model.hidden_size)
        elif name.endswith("attention_sink_bias"):
            tensor = tensor / model.init_std
        elif tensor.dim() == 2:
            tensor = GAIN * tensor
        return tensor.bfloat16().float()

    return read


def parity_batch(model: ModelConfig) -> Batch:
    """Random sequences; about half of the tokens are scored."""
    rng = np.random.default_rng(7)
    bounds = np.cumsum([0, *LENGTHS], dtype=np.int64)
    mask = (rng.random(bounds[-1]) < 0.5).astype(np.uint8)
    mask[bounds[:-1]] = 0
    level = -np.log(model.vocab_size)
    return Batch(
        tokens=rng.integers(0, model.vocab_size, bounds[-1]).astype(np.int32),
        logprobs=np.where(mask, level + 0.1 * rng.standard_normal(bounds[-1]), 0).astype(np.float32),
        loss_mask=mask,
        error_mask=np.zeros_like(mask),
        cu_seqlens=bounds,
        advantages=rng.choice([0.5, -0.5], len(LENGTHS)),
        weights=np.full(len(LENGTHS), 1 / mask.sum()),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
    )


def _marked(embedding: Tensor, num_experts: int) -> Tensor:
    token = torch.arange(len(embedding))
    embedding[:, :num_experts] = 0.0
    for place, mark in enumerate(MARKS):
        embedding[token, (token + place) % num_experts] = mark
    return embedding


def _relative(tensor: Tensor, reference: Tensor) -> float:
    return float((tensor - reference).norm() / reference.norm().clamp(min=1e-30))
