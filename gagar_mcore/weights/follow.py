"""Weights for a server as what changed: a copy on its host follows the run's versions, and the server reads the copy."""

import asyncio
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gagar_mcore.weights.mailbox import Mailbox, Unanswered
from gagar_mcore.weights.receiver import bring, own_replica
from gagar_mcore.weights.replica import Replica
from gagar_mcore.weights.transport import Order, TransportError, Update, load_directory


class Delta:
    """A Transport. receiver: the mailbox of the one beside the server; None: the server is on this host, and the copy this
    object's."""

    def __init__(self, receiver: Path | None, timeout_s: float) -> None:
        self._receiver, self._timeout_s = receiver, timeout_s
        self._stack = ExitStack()
        self._replica: Replica | None = None

    async def bring(self, order: Order, update: Update) -> None:
        answer = await self._ask(update.weights.absolute())
        if "error" in answer:
            raise TransportError(answer["error"])
        await load_directory(order, update, Path(answer["directory"]))

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)

    async def _ask(self, weights: Path) -> dict[str, Any]:
        if self._receiver is None:
            self._replica = self._replica or self._stack.enter_context(own_replica())
            return await asyncio.to_thread(bring, self._replica, weights)
        try:
            answer: dict[str, Any] = await Mailbox(self._receiver).ask(
                uuid.uuid4().hex, {"weights": str(weights)}, self._timeout_s
            )
        except Unanswered as error:
            raise TransportError(f"{weights.name}: no receiver follows: {error}") from error
        return answer
