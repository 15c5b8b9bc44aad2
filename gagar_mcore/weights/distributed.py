"""Weights for a server from the trainer, which broadcasts them."""

import asyncio
import uuid

from gagar_mcore.weights.buckets import BUCKET_BYTES, plan_buckets
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.group import Backend, Group
from gagar_mcore.weights.hosts import host_id
from gagar_mcore.weights.transfers import Offer, Transfer, Transfers
from gagar_mcore.weights.transport import Order, TransportError, Update, session

POLL_S = 0.02


class Broadcast:
    """A Transport. ranks: of the server's tensor parallelism; timeout_s: for the trainer to offer the weights, and of each wait
    while they are sent."""

    def __init__(self, ranks: int, backend: Backend, timeout_s: float, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ranks, self._backend, self._timeout_s = ranks, backend, timeout_s
        self._bucket_bytes = bucket_bytes

    async def bring(self, order: Order, update: Update) -> None:
        transfers = Transfers(update.weights.absolute().parents[1])
        group = Group(f"{update.weights.name}-{uuid.uuid4().hex}", self._ranks, self._backend, self._timeout_s)
        transfer = Transfer(update.weights.name, self._bucket_bytes, group, host_id())
        transfers.ask(transfer)
        try:
            await self._receive(order, update, group, await self._offer(transfers, transfer))
        finally:
            transfers.withdraw(transfer)

    async def close(self) -> None: ...

    async def _offer(self, transfers: Transfers, transfer: Transfer) -> Offer:
        try:
            async with asyncio.timeout(self._timeout_s):
                while (offer := transfers.offered(transfer)) is None:
                    if not transfers.is_attended:
                        raise TransportError(f"{transfer.weights}: no trainer is there to send them")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise TransportError(f"{transfer.weights}: no trainer offers to send them within {self._timeout_s:g} s") from error
        if offer.error:
            raise TransportError(f"{transfer.weights}: the trainer does not send them: {offer.error}")
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
        finally:
            await order("/destroy_weights_update_group", name)
