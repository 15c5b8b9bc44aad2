"""The controller's side of the trainer: it hands over batches and takes weights, both through the run directory."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, log_tail, start_trainer
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import RecordError, read_json

POLL_SECONDS = 0.02


@dataclass(slots=True)
class TrainerClient:
    """Starts the trainer, starts it again at most `restarts` times when it dies, and waits for its weights."""

    layout: RunLayout
    recipe: Recipe
    epoch: int
    restarts: int = 2
    _process: ManagedProcess | None = field(default=None)

    async def start(self) -> None:
        log = self.layout.logs / "trainer.log"
        self._process = await start_trainer(self.layout.root, self.epoch, self.recipe.trainer, log)

    async def weights(self, version: int) -> Path:
        """The published weights of `version`, once this epoch's trainer has come to them: what it makes again after a restart may
        open a new lineage. Raises ProcessFailed where the trainer takes longer than the deadline over its start and one step."""
        patience = self.recipe.trainer.start_timeout_s + self.recipe.trainer.step_timeout_s
        deadline = time.monotonic() + patience
        applied = self._applied()
        while applied < version:
            if time.monotonic() > deadline:
                log = self.layout.logs / "trainer.log"
                raise ProcessFailed(f"no weights of version {version} before the deadline; {log} ends:\n{log_tail(log)}")
            await self._supervise()
            await asyncio.sleep(POLL_SECONDS)
            before, applied = applied, self._applied()
            if applied != before:  # it makes its way through the batches that its checkpoint does not cover
                deadline = time.monotonic() + patience
        return self.layout.weights(version, current_lineage(self.layout))

    def _applied(self) -> int:
        """The last step that this epoch's trainer has applied, -1 before it says so."""
        try:
            return int(read_json(self.layout.trainer_state, min_epoch=self.epoch)["applied"])
        except RecordError:
            return -1

    async def _supervise(self) -> None:
        if self._process is None:
            return await self.start()
        try:
            self._process.check()
        except ProcessFailed:
            if self.restarts == 0:
                raise
            self.restarts -= 1
            await self.start()

    async def finish(self) -> None:
        """Wait for the trainer to end by itself after its last step. Raises ProcessFailed where it fails or does not end in time:
        the last checkpoint may then be missing."""
        if self._process is None:
            return
        deadline = time.monotonic() + self.recipe.trainer.step_timeout_s
        while self._process.exit_code is None:
            if time.monotonic() > deadline:
                log = self._process.log
                raise ProcessFailed(f"the trainer did not end after its last step; {log} ends:\n{log_tail(log)}")
            await asyncio.sleep(POLL_SECONDS)
        self._process.check()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()
