"""Checkpoints of a run: written beside the training, loadable in another layout, visible only when whole."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage
from gagar_mcore.records.store import FileSum, begin_directory, file_sum, finish_directory, read_manifest
from gagar_mcore.trainer.checkpoint_records import (
    KIND,
    as_record,
    from_first_rank,
    is_whole,
    newest_whole,
    refuse_missing,
    refuse_other_model,
)
from gagar_mcore.trainer.setup import Policy
from gagar_mcore.trainer.sharded_state import count_updates, layout_sizes, restore_state, sharded_state
from gagar_mcore.trainer.staging import Staged, stage


class CheckpointWriter:
    """Saves the checkpoints of a run, one at a time. A thread on each rank writes; with `async_checkpoint` it writes a copy in
    host memory, and training goes on meanwhile. To make one is a collective."""

    def __init__(self, layout: RunLayout, fence: Fence, trainer: TrainerSection) -> None:
        self._layout, self._fence = layout, fence
        self._asynchronous, self._timeout_s = trainer.async_checkpoint, trainer.step_timeout_s
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=trainer.step_timeout_s))
        self._writing: tuple[Path, Thread, Future[None]] | None = None

    def save(self, policy: Policy, step: int) -> None:
        """Save the state after `step`, when the save before is done. One that is already there stays. A collective."""
        self.wait()
        path = self._layout.checkpoint(step, current_lineage(self._layout))
        directory = from_first_rank(lambda: _make_room(path))
        if directory is None:
            return
        meta = {"step": step, "updates": count_updates(policy), "layout": layout_sizes(), "model": as_record(policy.model)}
        staged = stage(sharded_state(policy, with_random=True), directory, copy=self._asynchronous)
        self._writing = (path, *_in_thread(partial(self._write, staged, directory, path, meta)))
        if not self._asynchronous:
            self.wait()

    def raise_failure(self) -> None:
        """The error of the save under way, where it has failed by now."""
        if self._writing is not None and self._writing[2].done():
            self.wait()

    def wait(self) -> None:
        """Until no save is under way. Raises its error, and TimeoutError after `step_timeout_s`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            path, thread, written = writing
            thread.join(self._timeout_s)  # a process that exits while a thread of it lets go of tensors is aborted
            if thread.is_alive():
                raise TimeoutError(
                    f"{path}: not written within trainer.step_timeout_s={self._timeout_s:g}; the storage is slow or another rank"
                    " is stuck: mend that, or raise the timeout"
                )
            written.result()

    def _write(self, staged: Staged, directory: Path, path: Path, meta: dict[str, Any]) -> None:
        """On every rank; the first one publishes."""
        try:
            staged.write(directory, self._group)
            sums = self._gather_sums(directory)
            if dist.get_rank() == 0:
                finish_directory(directory, path, KIND, self._fence.epoch, meta, self._fence, sums)
        finally:
            if dist.get_rank() == 0:
                shutil.rmtree(directory, ignore_errors=True)

    def _gather_sums(self, directory: Path) -> dict[str, FileSum]:
        """On rank 0, those of the files that the ranks wrote, each made by its writer."""
        own = {file.name: file_sum(file) for file in directory.glob(f"__{dist.get_rank()}_*")}
        parts: list[Any] | None = [None] * self._group.size() if dist.get_rank() == 0 else None
        dist.gather_object(own, parts, group=self._group)
        return {name: known for part in parts or [] for name, known in part.items()}


def load_checkpoint(policy: Policy, layout: RunLayout) -> int | None:
    """Restore the newest whole checkpoint, in whatever layout it was saved; returns its step, None where there is none.
    A collective. Raises RecordError for a whole one of another model, and for what `newest_whole` and `refuse_missing` refuse."""
    path = newest_whole(layout)
    if path is None:
        return None
    meta = read_manifest(path, KIND).meta
    refuse_other_model(path, meta, policy.model)
    wanted = sharded_state(policy, with_random=meta["layout"] == layout_sizes(), is_loading=True)
    refuse_missing(path, wanted)
    restore_state(policy, dist_checkpointing.load(wanted, str(path)), meta["updates"])
    return int(meta["step"])


def _make_room(path: Path) -> Path | None:
    """Where to write what `path` is to hold; None where it holds it already."""
    if is_whole(path):
        return None
    shutil.rmtree(path, ignore_errors=True)
    return begin_directory(path)


def _in_thread(call: Callable[[], None]) -> tuple[Thread, Future[None]]:
    """Run it in a thread that does not outlive the process."""
    future: Future[None] = Future()
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if gpu is not None:
                torch.cuda.set_device(gpu)  # a new thread begins with the first one
            call()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=run, name="checkpoint", daemon=True)
    thread.start()
    return thread, future
