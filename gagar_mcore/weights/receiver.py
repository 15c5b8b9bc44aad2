"""The receiver beside a server: its copy of the weights follows the run's versions, for whoever asks in its mailbox."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gagar_mcore.records.store import RecordError
from gagar_mcore.weights.mailbox import Mailbox
from gagar_mcore.weights.replica import Replica

log = logging.getLogger(__name__)


@contextmanager
def own_replica() -> Iterator[Replica]:
    """A copy where temporary files lie, which TMPDIR says; deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="gagar-weights-", ignore_cleanup_errors=True) as folder:  # a late copy may write yet
        yield Replica(Path(folder))


@contextmanager
def receiving(folder: Path) -> Iterator[None]:
    """Bring a copy on this host to the weights that are asked for in the mailbox `folder`; an answer says where the copy is."""
    mailbox = Mailbox(folder)
    with own_replica() as replica:

        def answer(name: str, question: Any) -> None:
            mailbox.answer(name, bring(replica, Path(question["weights"])))

        with mailbox.attended(answer):
            yield


def bring(replica: Replica, weights: Path) -> dict[str, Any]:
    """Where the copy is and what it took, or the error."""
    try:
        transfer = replica.bring(weights)
    except (RecordError, OSError) as error:
        return {"error": str(error)}
    if transfer.whole:
        log.warning("%s: copied whole: %s", weights, transfer.whole)
    return {"directory": str(replica.directory), **asdict(transfer)}
