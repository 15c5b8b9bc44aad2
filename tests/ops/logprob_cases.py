"""What the tests of the log-probs share: the full computation, and a watch on memory."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def inputs(tokens: int, vocabulary: int, hidden_size: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Hidden states, weights and targets; logits have a standard deviation of 2."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, hidden_size, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, hidden_size, generator=generator, dtype=torch.float64) * 2 * hidden_size**-0.5
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return [hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets]


def full_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies by the definition, in float64."""
    distribution = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    terms = torch.where(distribution == -torch.inf, 0, distribution.exp() * distribution)
    return distribution.gather(1, targets[:, None])[:, 0], -terms.sum(-1)


class PeakMemory(TorchDispatchMode):
    """Bytes of the tensors made while it is active: `peak` at one time, `largest` in one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.track(leaf.untyped_storage(), {a.untyped_storage() for a in tree_leaves(args) if isinstance(a, Tensor)})
        return result

    def track(self, storage: Any, before: set[Any]) -> None:
        if storage in self.seen or storage in before:
            return
        size = storage.nbytes()
        self.seen.add(storage)
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self.release, size)

    def release(self, size: int) -> None:
        self.live -= size
