"""One server's weights brought to a published version, whichever way, and looked at afterwards."""

import asyncio
import contextlib
import logging
from pathlib import Path

from safetensors import SafetensorError

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.weights.checksums import differing_parameters
from gagar_mcore.weights.distributed import Broadcast
from gagar_mcore.weights.follow import Delta
from gagar_mcore.weights.tensor import SharedMemory
from gagar_mcore.weights.transport import Disk, Order, Transport, Update

log = logging.getLogger(__name__)
FAILURES = (RuntimeError, ValueError, KeyError, OSError, SafetensorError)  # of a transport, of files, of an answer's fields


class Anew(Disk):
    """From disk, whatever an attempt before has left open."""

    async def bring(self, order: Order, update: Update) -> None:
        with contextlib.suppress(EngineError):  # there may be no session to end
            await order("/end_weight_update", {})
        await super().bring(order, update)


class Updater:
    """Where the weights do not come as `section.server.update` says, or a checksum differs afterwards, the server reads the whole
    published directory."""

    def __init__(self, section: EngineSection, receiver: Path | None) -> None:
        """receiver: see `weights.follow`."""
        self._section = section
        self._transport = open_transport(section, receiver)

    async def bring(self, order: Order, update: Update) -> None:
        """The server that takes these orders is paused. Raises EngineError where it does not hold the weights in the end: it may
        hold a mixture then."""
        try:
            return await self._try(self._transport, order, update)
        except EngineError as error:
            log.warning("%s: %s; now the server reads all of it", update.weights, error)
        await self._try(Anew(), order, update)

    async def close(self) -> None:
        await self._transport.close()

    async def _try(self, transport: Transport, order: Order, update: Update) -> None:
        deadline_s = self._section.start_timeout_s
        try:
            async with asyncio.timeout(deadline_s):
                await transport.bring(order, update)
                await self._look(order, update)
        except TimeoutError as error:
            raise EngineError(f"{update.weights}: not loaded within engine.start_timeout_s={deadline_s:g}") from error
        except FAILURES as error:
            raise error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__} {error}") from error

    async def _look(self, order: Order, update: Update) -> None:
        held = (await order("/model_info", None))["weight_version"]
        if held != str(update.version):
            raise EngineError(f"the server holds version {held} where {update.version} was loaded")
        differing = await differing_parameters(order, update.weights, on_gpu=self._section.device == "cuda")
        if differing:
            raise EngineError(f"the server holds other values than {update.weights} of {', '.join(differing)}")


def open_transport(section: EngineSection, receiver: Path | None) -> Transport:
    match section.server.update:
        case "disk":
            return Disk()
        case "tensor":
            return SharedMemory(section.server.tp)
        case "distributed":
            return Broadcast(section.server.tp, "nccl" if section.device == "cuda" else "gloo", section.start_timeout_s)
        case "delta":
            return Delta(receiver, section.start_timeout_s)
