"""Log-probs without gradient: of the policy as it stands, or of a reference that takes its place for one pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gagar_mcore.trainer.mtp import MtpPart
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.shards import load_tensors, local_tensors
from gagar_mcore.trainer.update import run_schedule, scored_logprobs
from gagar_mcore.weights.files import TensorReader


def score(policy: Policy, parts: Sequence[MtpPart], temperature: float) -> list[Tensor]:
    """Log-probs `[N]` float32 of every part's scored tokens; empty but on the last pipeline stage. A collective."""

    def keep(part: MtpPart, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logprobs, _ = scored_logprobs(policy.chunks[-1], hidden, part.packed_tokens, temperature)
        return logprobs.new_zeros([]), logprobs

    with torch.no_grad():
        return run_schedule(policy, parts, keep, forward_only=True)


@dataclass(frozen=True, slots=True)
class Reference:
    """Weights of another policy of the same layout, this rank's shards by name, on the host: no gradients, no optimizer."""

    shards: dict[str, Tensor]

    @contextmanager
    def in_place_of(self, policy: Policy) -> Iterator[None]:
        """These weights in the model while it lasts, the policy's own on the host."""
        self._exchange(policy)
        try:
            yield
        finally:
            self._exchange(policy)

    @torch.no_grad()
    def _exchange(self, policy: Policy) -> None:
        for name, tensor in local_tensors(policy.chunks).items():
            held = self.shards[name]
            own = tensor.to(held.device, copy=True)
            tensor.copy_(held)
            held.copy_(own)


def load_reference(policy: Policy, read: TensorReader) -> Reference:
    """Read the weights through the model itself: what it held is lost, so this comes before its own are loaded."""
    load_tensors(policy.chunks, policy.model, read)
    return Reference({name: on_host(tensor) for name, tensor in local_tensors(policy.chunks).items()})


def on_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, pinned where there is a GPU to copy to."""
    copy: Any = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    copy.copy_(tensor.detach())
    return copy
