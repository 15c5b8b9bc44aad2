"""Tensors between the ranks of a context-parallel group."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Flight:
    """Tensors on their way. They may be neither changed nor freed before `land`."""

    def __init__(self, group: Any, sent: Sequence[tuple[int, Tensor]], expected: Sequence[tuple[int, Tensor]]) -> None:
        """sent: to the rank of the group; expected: from the rank, and where to put it. Empty tensors do not travel."""
        self.arriving, self.sent = [tensor for _, tensor in expected], [tensor for _, tensor in sent]
        operations = [(dist.isend, *item) for item in sent] + [(dist.irecv, *item) for item in expected]
        self.works: list[Any] = []
        batch = [dist.P2POp(op, t, dist.get_global_rank(group, peer), group) for op, peer, t in operations if t.numel()]
        if batch:
            self.works = dist.batch_isend_irecv(batch)

    def land(self) -> list[Tensor]:
        """What has arrived, when everything has."""
        for work in self.works:
            work.wait()
        return self.arriving


def to_next(tensors: Sequence[Tensor], group: Any) -> Flight:
    """To the next rank of the ring, from the one before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent = [((rank + 1) % size, tensor.contiguous()) for tensor in tensors]
    expected = [((rank - 1) % size, torch.empty_like(tensor)) for _, tensor in sent]
    return Flight(group, sent, expected)


def round_trip(tensors: Sequence[Tensor], group: Any) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Each rank's number and tensors, from this rank backwards round the ring; the next ones travel while the caller works."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for step in range(size):
        flight = to_next(tensors, group) if step < size - 1 else None
        yield (rank - step) % size, tensors
        if flight is not None:
            tensors = flight.land()


def swap_with_neighbours(to_next: Tensor, to_previous: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """What the rank before and the rank after sent, zeros at the ends of the line. Shapes are the same on all ranks."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    from_previous, from_next = torch.zeros_like(to_next), torch.zeros_like(to_previous)
    sent = [(rank + 1, to_next.contiguous())] * (rank < last) + [(rank - 1, to_previous.contiguous())] * (rank > 0)
    Flight(group, sent, [(rank + 1, from_next)] * (rank < last) + [(rank - 1, from_previous)] * (rank > 0)).land()
    return from_previous, from_next
