"""Ranks over gloo in processes of their own, forked from a server that has imported what they need."""

import multiprocessing
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DEADLINE = timedelta(seconds=120)


def compute_on_ranks(ranks: int, target: Path, imports: str, compute: Callable[[int], Any]) -> Any:
    """What `compute(rank)`, a function of a module, returns on rank 0 of `ranks`, through files below `target`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", imports])
    processes = [context.Process(target=_run_rank, args=(rank, ranks, target, compute), daemon=True) for rank in range(ranks)]
    for process in processes:
        process.start()
    ended = time.monotonic() + DEADLINE.total_seconds()
    for process in processes:
        process.join(max(0.0, ended - time.monotonic()))
    assert [process.exitcode for process in processes] == [0] * ranks
    return torch.load(target / "results", weights_only=False)


def _run_rank(rank: int, ranks: int, target: Path, compute: Callable[[int], Any]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(target / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=DEADLINE)
    results = compute(rank)
    if rank == 0:
        torch.save(results, target / "results")
    dist.barrier()
    dist.destroy_process_group()
