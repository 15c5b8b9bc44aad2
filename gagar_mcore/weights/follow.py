"""Weights for a server as what changed: a copy beside it follows the run's versions, and the server reads the copy."""

import asyncio
import logging
import tempfile
from pathlib import Path

from gagar_mcore.records.store import RecordError
from gagar_mcore.weights.replica import Replica
from gagar_mcore.weights.transport import Order, TransportError, Update, load_directory

log = logging.getLogger(__name__)


class Delta:
    """A Transport. The copy lies where temporary files do, which TMPDIR says, on the server's host."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gagar-weights-")
        self.replica = Replica(Path(self._folder.name))

    async def bring(self, order: Order, update: Update) -> None:
        try:
            transfer = await asyncio.to_thread(self.replica.bring, update.weights)
        except (RecordError, OSError) as error:
            raise TransportError(str(error)) from error
        if transfer.whole:
            log.warning("%s: copied whole: %s", update.weights, transfer.whole)
        await load_directory(order, update, self.replica.directory)

    async def close(self) -> None:
        await asyncio.to_thread(self._folder.cleanup)
