"""The engine on a pretended GPU against the engine on the CPU: `engine_elsewhere.py CHECKPOINT`. A process of its own, because
PyTorch takes a new kind of device once and for good."""

import sys
from pathlib import Path

import torch
from elsewhere import DEVICE, Elsewhere, PretendedGpu

from gagar_mcore.engine.cache import Chunk
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.sampling import sample

CHUNKS = (Chunk.of([0, 1], [list(range(5, 60)), [8, 9]], [0, 0]), Chunk.of([0, 1], [[5], [9]], [55, 2]))


def main() -> None:
    checkpoint = Path(sys.argv[1])
    expected = answers(Policy(checkpoint, 0, rows=4, max_context=64))
    with PretendedGpu():
        policy = Policy(checkpoint, 0, rows=4, max_context=64, device=str(DEVICE))
        assert places(policy) == {DEVICE}
        assert answers(policy) == expected
        policy.release()
        assert places(policy) == {torch.device("cpu")}
        assert answers(policy) == expected
        assert places(policy) == {DEVICE}
        refuses_to_mix()


@torch.no_grad()
def answers(policy: Policy) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probs after each chunk."""
    forward = Policy.forward.__wrapped__  # tensors that pretend cannot be those of the inference mode
    return [sample(forward(policy, chunk), [1.0, 0.0], [0.3, 0.4]) for chunk in CHUNKS]


def places(policy: Policy) -> set[torch.device]:
    """Where weights and cache lie."""
    held = [*policy.model.parameters(), *policy.model.buffers()]
    if policy.cache is not None:
        held += [*policy.cache._keys, *policy.cache._values]
    return {tensor.device for tensor in held}


def refuses_to_mix() -> None:
    try:
        torch.zeros(2, device=DEVICE) + torch.zeros(2)
    except RuntimeError:
        assert isinstance(torch.zeros(2, device=DEVICE) + 1, Elsewhere)
        return
    raise AssertionError("the pretended GPU takes tensors of the CPU")


if __name__ == "__main__":
    main()
