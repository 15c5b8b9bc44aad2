"""Token draws that follow from a seed and a token's place in its answer, never from the rest of the batch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, count: int) -> np.ndarray:
    """`[count] float64` in [0, 1): element k is a function of (seed, k) alone (Philox 4x64, a counter-based generator)."""
    return np.random.Generator(np.random.Philox(seed)).random(count)


def sample(logits: Tensor, temperatures: Sequence[float], draws: Sequence[float]) -> tuple[list[int], list[float]]:
    """One token a row by inversion of the cumulative distribution, in float64.

    logits: `[rows, vocab]`; temperatures, draws: `[rows]`. Returns token ids and their log-probs under
    softmax(logits / temperature). A temperature of 0 takes the largest logit and reports its log-prob at temperature 1.
    Raises FloatingPointError where a logit is not finite.
    """
    if not torch.isfinite(logits).all():
        raise FloatingPointError("the model's logits are not finite: its weights are damaged or have diverged")
    scale = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float64).to(logits.device)
    logprobs = torch.log_softmax(logits.double() / scale[:, None], dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1)
    targets = torch.tensor(draws, dtype=torch.float64).to(logits.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    greedy = torch.tensor([t == 0 for t in temperatures]).to(logits.device)[:, None]
    tokens = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), drawn)
    return tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist()
