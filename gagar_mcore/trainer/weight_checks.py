"""What weights must not hold when they are published or saved."""

import torch
import torch.distributed as dist

from gagar_mcore.models.weight_map import weight_rules
from gagar_mcore.trainer.microbatch import device
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.shards import held_rules, local_tensors


@torch.no_grad()
def check_weights(policy: Policy) -> None:
    """Raises RuntimeError where any rank holds a weight that is not finite; it names the first such tensor of the checkpoint, on
    every rank alike, so that none is left waiting. A collective."""
    local = local_tensors(policy.chunks)
    held = list(held_rules(local, policy.model))
    largest = torch.stack([torch.linalg.vector_norm(local[name], torch.inf).float() for _, _, name in held])
    rules = list(weight_rules(policy.model))
    bad = (number for (number, _, _), finite in zip(held, largest.isfinite().tolist(), strict=True) if not finite)
    first = torch.tensor(next(bad, len(rules)), device=device())
    dist.all_reduce(first, dist.ReduceOp.MIN)
    if first < len(rules):
        raise RuntimeError(
            f"{rules[int(first)].tensors[0]}: not finite after the update, of which nothing is published or saved: look at loss "
            "and gradient norm of the steps before, and at the learning rate"
        )
