"""The controller's side of the trainer: it hands over batches and takes weights, both through the run directory."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, log_tail, start_trainer
from gagar_mcore.records.epochs import min_weights_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import MANIFEST, read_manifest

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
        trainer = self.recipe.trainer
        log = self.layout.logs / "trainer.log"
        self._process = await start_trainer(self.layout.root, self.epoch, trainer.world_size, trainer.threads, log)

    async def weights(self, version: int) -> Path:
        """The published weights of `version`, as soon as the trainer has them. Raises ProcessFailed past the deadline."""
        deadline = time.monotonic() + self.recipe.trainer.start_timeout_s + self.recipe.trainer.step_timeout_s
        while time.monotonic() < deadline:
            path = self.layout.weights(version, current_lineage(self.layout))
            if (path / MANIFEST).is_file() and self._is_current(path, version):
                return path
            await self._supervise()
            await asyncio.sleep(POLL_SECONDS)
        log = self.layout.logs / "trainer.log"
        raise ProcessFailed(f"no weights of version {version} before the deadline; {log} ends:\n{log_tail(log)}")

    def _is_current(self, path: Path, version: int) -> bool:
        """Whether a trainer that owned the run has written the weights; those of a fenced one are about to be replaced."""
        return read_manifest(path, "weights").epoch >= min_weights_epoch(read_epochs(self.layout), version)

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
