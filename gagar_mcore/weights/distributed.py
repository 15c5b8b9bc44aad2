"""Weights for a server from the trainer, which broadcasts them."""

import asyncio
import uuid
from dataclasses import asdict
from pathlib import Path

from gagar_mcore.weights.buckets import BUCKET_BYTES, plan_buckets
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.group import Backend, Group
from gagar_mcore.weights.hosts import host_id
from gagar_mcore.weights.mailbox import Unanswered
from gagar_mcore.weights.sender import Offer, Transfer, transfers
from gagar_mcore.weights.transport import Order, TransportError, Update, session


class Broadcast:
    """A Transport. ranks: of the server's tensor parallelism; timeout_s: for the trainer to offer the weights, and of each wait
    while they are sent."""

    def __init__(self, ranks: int, backend: Backend, timeout_s: float, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks, self._backend, self._timeout_s = ranks, backend, timeout_s
        self._bucket_bytes = bucket_bytes

    async def bring(self, order: Order, update: Update) -> None:
        group = Group(f"{update.weights.name}-{uuid.uuid4().hex}", self._ranks, self._backend, self._timeout_s)
        await self._receive(order, update, group, await self._offer(update.weights.absolute(), group))

    async def close(self) -> None: ...

    async def _offer(self, weights: Path, group: Group) -> Offer:
        transfer = Transfer(weights.name, self._bucket_bytes, group, host_id())
        try:
            offer = Offer(**await transfers(weights.parents[1]).ask(group.name, asdict(transfer), self._timeout_s))
        except Unanswered as error:
            raise TransportError(f"{weights.name}: no trainer offers to send them: {error}") from error
        if offer.error:
            raise TransportError(f"{weights.name}: the trainer does not send them: {offer.error}")
        return offer

    async def _receive(self, order: Order, update: Update, group: Group, offer: Offer) -> None:
        buckets = plan_buckets(await asyncio.to_thread(TensorFiles, update.weights), self._bucket_bytes)
        where = {"master_address": offer.address, "master_port": offer.port, "rank_offset": 1, "world_size": group.size}
        name = {"group_name": group.name}
        await order("/init_weights_update_group", {**where, **name, "backend": group.backend})
        try:
            async with session(order):
                for bucket in buckets:
                    last = update.marks() if bucket is buckets[-1] else {"flush_cache": False}
                    await order("/update_weights_from_distributed", {**bucket.description(), **name, **last})
        except Exception:
            await order("/destroy_weights_update_group", name)
            raise
        await order("/destroy_weights_update_group", name)
