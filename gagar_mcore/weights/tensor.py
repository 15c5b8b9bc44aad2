"""Weights for a server on this host, through memory that it shares with this process."""

import asyncio
import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import torch
import torch.multiprocessing
from torch import Tensor

from gagar_mcore.weights.buckets import BUCKET_BYTES, Bucket, plan_buckets
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.transport import Order, Update, session


class SharedMemory:
    """A Transport. ranks: of the server's tensor parallelism, each of which is told of the memory by itself."""

    def __init__(self, ranks: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks, self._bucket_bytes = ranks, bucket_bytes

    async def bring(self, order: Order, update: Update) -> None:
        files = await asyncio.to_thread(TensorFiles, update.weights)
        buckets = plan_buckets(files, self._bucket_bytes)
        memory = torch.empty(max(bucket.nbytes for bucket in buckets), dtype=torch.uint8)
        async with session(order):
            for bucket in buckets:
                flat = await asyncio.to_thread(bucket.fill, files, memory)
                last = update.marks() if bucket is buckets[-1] else {"flush_cache": False}
                body = {"serialized_named_tensors": [announce(bucket, flat) for _ in range(self._ranks)], **last}
                await order("/update_weights_from_tensor", {"load_format": "flattened_bucket", **body})

    async def close(self) -> None: ...


def announce(bucket: Bucket, flat: Tensor) -> str:
    """What one process is told of a bucket's place in shared memory, and of its tensors: a pickle, as SGLang reads it."""
    spans = [
        SimpleNamespace(
            name=spec.name,
            shape=torch.Size(spec.shape),
            dtype=spec.dtype,
            start_idx=start,
            end_idx=stop,
            numel=stop - start,
        )
        for spec, start, stop in bucket.spans()
    ]
    out = io.BytesIO()
    with _shared_by_name():
        ForkingPickler(out).dump({"flattened_tensor": flat, "metadata": spans})
    return base64.b64encode(out.getvalue()).decode()


@contextmanager
def _shared_by_name() -> Iterator[None]:
    """A process that is no child of this one cannot take over its open files, but can open one by name."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
