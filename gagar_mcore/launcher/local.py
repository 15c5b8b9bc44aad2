"""Processes of a run on this machine: each ends with its parent, and says why when it fails."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.lifetime import die_with_parent


class ProcessFailed(RuntimeError):
    """A process of the run ended or stayed silent past its deadline; the message ends with the tail of its log."""


LINE_CHARACTERS = 500


def log_tail(path: Path, lines: int = 15) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(line[-LINE_CHARACTERS:] for line in text.splitlines()[-lines:])


class ManagedProcess:
    """One child process with its log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.log = name, log
        self._process = process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, env: dict[str, str]) -> "ManagedProcess":
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | env,
                preexec_fn=die_with_parent,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def check(self) -> None:
        """Raises ProcessFailed where the process has ended with an error."""
        if self.exit_code not in (None, 0):
            raise ProcessFailed(f"the {self.name} ended with exit code {self.exit_code}; {self.log} ends:\n{log_tail(self.log)}")

    async def stop(self, grace_s: float = 10.0) -> None:
        if self.exit_code is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_trainer(run: Path, epoch: int, trainer: TrainerSection, log: Path) -> ManagedProcess:
    """The Megatron ranks under torchrun; they take their recipe and batches from the run directory."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={trainer.world_size}"),
        "--max-restarts=0",
        *("-m", "gagar_mcore.trainer.main", str(run), "--epoch", str(epoch)),
    ]
    return await ManagedProcess.start("trainer", command, log, rank_environment(trainer.threads))


def rank_environment(threads: int) -> dict[str, str]:
    """Threads that wait sleep: spinning ones take the cores from the other processes of the machine. Megatron wants kernels of
    communication and computation to start in the order of the calls: one queue."""
    return {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
    }
