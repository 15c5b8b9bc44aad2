"""Where the metrics of a step go: `metrics.jsonl` always, Weights & Biases on top."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gagar_mcore.config.learning import TrackingSection
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.tracking.metrics import Metrics, MetricsLog
from gagar_mcore.tracking.wandb_mirror import WandbMirror


def warn_on_stderr(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Tracker:
    """`log` takes all metrics of a step in one call and returns once they are on disk."""

    def __init__(self, log: MetricsLog, mirror: WandbMirror | None = None) -> None:
        self._log = log
        self._mirror = mirror

    def log(self, step: int, metrics: Metrics) -> None:
        self._log.log(step, metrics)
        if self._mirror:
            self._mirror.notify()

    def close(self) -> None:
        """Returns within a minute, whatever Weights & Biases does."""
        self._log.close()
        if self._mirror:
            self._mirror.close()


def open_tracker(
    run: Path,
    tracking: TrackingSection,
    name: str,
    config: Mapping[str, Any],
    warn: Callable[[str], None] = warn_on_stderr,
) -> Tracker:
    """The tracker of a new or a resumed run. `config` is plain data shown beside the run in W&B, `warn` takes a line of text
    and may be called from another thread."""
    layout = RunLayout(run)
    log = MetricsLog(layout.metrics)
    if tracking.wandb == "off":
        return Tracker(log)
    return Tracker(log, WandbMirror(layout, tracking.wandb, tracking.project, name, config, warn))
