"""What the trainer sends to servers that ask for published weights, in the mailbox `transfers/` of the run directory."""

import logging
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gagar_mcore.weights.buckets import plan_buckets
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.group import Group, Sending, listening
from gagar_mcore.weights.hosts import reachable_address
from gagar_mcore.weights.mailbox import Mailbox

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Published weights by their folder's name, and the group to send them in; asker: the host that asks, see `hosts.host_id`."""

    weights: str
    bucket_bytes: int
    group: Group
    asker: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Where the group's store listens; error: why nothing will be sent."""

    address: str = ""
    port: int = 0
    error: str = ""


def transfers(run: Path) -> Mailbox:
    return Mailbox(run / "transfers")


def sending(run: Path) -> AbstractContextManager[None]:
    """Serve the transfers of a run while it lasts. Each has a thread, so that a server which hangs keeps no other waiting."""
    return transfers(run).attended(partial(_answer, run))


def _answer(run: Path, name: str, question: Any) -> None:
    transfer = Transfer(**{**question, "group": Group(**question["group"])})
    try:
        _send(run, name, transfer)
    except (RuntimeError, ValueError, OSError) as error:  # the server's own orders fail, too
        log.warning("weights %s: not sent: %s", transfer.weights, str(error))
        transfers(run).answer(name, asdict(Offer(error=str(error))))


def _send(run: Path, name: str, transfer: Transfer) -> None:
    """Offer the weights and send them, bucket after bucket. Raises RuntimeError where the server does not take them in time,
    ValueError where there are none."""
    files = TensorFiles(run / "weights" / Path(transfer.weights).name)
    buckets = plan_buckets(files, transfer.bucket_bytes)
    memory = torch.empty(max(bucket.nbytes for bucket in buckets), dtype=torch.uint8)
    with listening(reachable_address(transfer.asker)) as port:
        transfers(run).answer(name, asdict(Offer(*port.getsockname())))
        group = Sending(transfer.group, port)
    with closing(group):
        for bucket in buckets:
            group.broadcast(bucket.fill(files, memory).to(transfer.group.device))
