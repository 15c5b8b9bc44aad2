"""What one rank looks up for all."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def from_first_rank(find: Callable[[], T]) -> T:
    """What rank 0 finds, on every rank."""
    box: list[Any] = [find() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found
