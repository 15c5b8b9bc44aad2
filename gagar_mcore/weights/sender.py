"""A thread of the trainer that sends published weights to the servers that ask for them in the run directory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import torch

from gagar_mcore.weights.buckets import plan_buckets
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.group import Sending, listening
from gagar_mcore.weights.hosts import reachable_address
from gagar_mcore.weights.transfers import Offer, Transfer, Transfers

POLL_S = 0.05
log = logging.getLogger(__name__)


@contextmanager
def sending(run: Path) -> Iterator[None]:
    """Serve the transfers of a run while it lasts; those under way are finished."""
    over, transfers = Event(), Transfers(run)
    thread = Thread(target=_serve, args=(transfers, over), name="weights sender", daemon=True)
    with transfers.attended():
        thread.start()
        try:
            yield
        finally:
            over.set()
    thread.join()


def _serve(transfers: Transfers, over: Event) -> None:
    """Each transfer has a thread, so that a server which hangs keeps no other waiting."""
    threads: dict[str, Thread] = {}
    while not over.wait(POLL_S):
        for transfer in transfers.asked():
            if transfer.group.name not in threads:
                thread = Thread(target=_send, args=(transfers, transfer), name=transfer.group.name, daemon=True)
                threads[transfer.group.name] = thread
                thread.start()
    for thread in threads.values():
        thread.join()


def _send(transfers: Transfers, transfer: Transfer) -> None:
    try:
        send(transfers, transfer)
    except (RuntimeError, ValueError, OSError) as error:  # the server's own orders fail, and say so
        log.warning("weights %s: not sent: %s", transfer.weights, error)


def send(transfers: Transfers, transfer: Transfer) -> None:
    """Offer the transfer and send the weights, bucket after bucket. Raises RuntimeError where the server does not take them in
    time, ValueError where there are none."""
    try:
        files = TensorFiles(transfers.run / "weights" / Path(transfer.weights).name)
        buckets = plan_buckets(files, transfer.bucket_bytes)
    except ValueError as error:
        transfers.offer(transfer, Offer(error=str(error)))
        raise
    memory = torch.empty(max(bucket.nbytes for bucket in buckets), dtype=torch.uint8)
    with listening() as port:
        transfers.offer(transfer, Offer(reachable_address(transfer.asker), port.getsockname()[1]))
        group = Sending(transfer.group, port)
    for bucket in buckets:
        group.broadcast(bucket.fill(files, memory).to(transfer.group.device))
