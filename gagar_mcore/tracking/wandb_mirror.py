"""Weights & Biases as a mirror of `metrics.jsonl`, in a thread of its own: it can fail or hang without touching the run.

All starts of a run share one W&B run. Online, steps are streamed and the server's own count says where to go on. Offline,
the steps that no earlier start has written go into one offline folder, when the mirror opens and when it closes, and
the folder appears whole or not at all (`wandb` buffers what it writes and loses it in a kill)."""

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.records.store import publish_json, read_json
from gagar_mcore.tracking.metrics import scan_metrics

Mode = Literal["offline", "online"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Which W&B run mirrors this one, and the last step that it was given."""

    run_id: str
    last_step: int


class WandbMirror:
    """Follows the metrics of the run in `layout`; steps that earlier starts left out are made up for.

    `config` is plain data shown beside the run. Whatever fails ends the mirror with one line through `warn`, called in
    the mirror's thread. `deadline_s` bounds the start of a W&B run, and its end.
    """

    def __init__(
        self,
        layout: RunLayout,
        mode: Mode,
        project: str,
        name: str,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
        deadline_s: float = 30.0,
    ) -> None:
        self._layout = layout
        self._mode = mode
        self._init = {"mode": mode, "project": project, "name": name, "config": dict(config)}
        self._warn = warn
        self._deadline_s = deadline_s
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._guarded, name="wandb-mirror", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """There is something new in `metrics.jsonl`. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        """Hand over the rest and end the W&B run. Returns after twice the deadline at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(2 * self._deadline_s)
        if self._thread.is_alive():
            warn, self._warn = self._warn, lambda text: None  # what fails from here on is of no more interest
            warn(f"Weights & Biases did not finish in time; every step is in {self._layout.metrics}")

    def _guarded(self) -> None:
        try:
            self._stream() if self._mode == "online" else self._write_segments()
        except ImportError:
            self._warn("Weights & Biases is off: pip install 'gagar-mcore[wandb]', or set tracking.wandb=off")
        except Exception as error:  # third-party and optional: nothing it raises may cost a step
            reason = " ".join(str(error).split())
            self._warn(f"Weights & Biases is off: {reason}; every step is in {self._layout.metrics}")

    def _stream(self) -> None:
        ledger = open_ledger(self._layout)
        run = start_run(ledger.run_id, self._layout.root, self._init, self._deadline_s)
        last, closing = run.starting_step - 1, False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            last = hand_over(run, self._layout, last)
            close_ledger(self._layout, Ledger(ledger.run_id, last))
        run.finish()

    def _write_segments(self) -> None:
        import wandb  # noqa: F401 - to say at the start of a run that it is not there

        self._write_segment()
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
        self._write_segment()

    def _write_segment(self) -> None:
        ledger = open_ledger(self._layout)
        if max(scan_metrics(self._layout.metrics).steps, default=-1) <= ledger.last_step:
            return
        scratch = self._layout.root / f".wandb.{os.getpid()}.tmp"
        scratch.mkdir(exist_ok=True)
        run = start_run(ledger.run_id, scratch, self._init, self._deadline_s)
        folder = Path(run.dir).parent
        last = hand_over(run, self._layout, ledger.last_step)
        run.finish()
        ledger = Ledger(ledger.run_id, last)
        publish_json(folder / "ledger.json", to_plain(ledger), epoch=0)
        os.rename(folder, self._layout.wandb_ledger.parent / folder.name)
        close_ledger(self._layout, ledger)
        shutil.rmtree(scratch)


def open_ledger(layout: RunLayout) -> Ledger:
    """What W&B was given so far; a run that it has not seen yet gets an id, on disk when this returns."""
    path = layout.wandb_ledger
    if not path.exists():
        close_ledger(layout, Ledger(uuid.uuid4().hex[:12], -1))
    # A kill right after an offline folder was put in place leaves it ahead of the ledger of the run.
    ledgers = [_read_ledger(p) for p in (path, *path.parent.glob("offline-run-*/ledger.json"))]
    return Ledger(ledgers[0].run_id, max(ledger.last_step for ledger in ledgers))


def _read_ledger(path: Path) -> Ledger:
    ledger: Ledger = from_plain(Ledger, read_json(path))
    return ledger


def close_ledger(layout: RunLayout, ledger: Ledger) -> None:
    publish_json(layout.wandb_ledger, to_plain(ledger), epoch=0)


def hand_over(run: Any, layout: RunLayout, last: int) -> int:
    """Give the steps after `last` to the W&B run; returns the last step that it now has."""
    for step, metrics in scan_metrics(layout.metrics).steps.items():
        if step > last:
            run.log(metrics, step=step, commit=True)
            last = step
    return last


def start_run(run_id: str, directory: Path, init: Mapping[str, Any], deadline_s: float) -> Any:
    """A silent W&B run below `directory`, continued where the server knows `run_id`. Raises what `wandb` raises; never
    asks for a login."""
    import wandb

    if init["mode"] == "online" and not wandb.login(prompt=False):
        raise RuntimeError("no API key; run `wandb login`, or set tracking.wandb=offline")
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        init_timeout=deadline_s,
        finish_timeout=deadline_s,
    )
    return wandb.init(id=run_id, resume="allow", dir=str(directory), settings=settings, **init)
