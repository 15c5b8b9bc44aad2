"""`metrics.jsonl`: the metrics of a run, one JSON line a step, on disk before the next step begins."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.records.store import fsync_directory

Metrics = Mapping[str, float]


class MetricsLog:
    """Appends to `path`; the caller owns the run, so there is one writer.

    A line torn by a kill is cut off at opening. A step logged again counts once: identical metrics are not written
    a second time, and of different ones the last line is the one that readers see.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._lines = {step: _encode(step, metrics) for step, metrics in scan_metrics(path).steps.items()}
        self._file = open(path, "ab")  # noqa: SIM115 - lives as long as the log
        fsync_directory(path.parent)

    def log(self, step: int, metrics: Metrics) -> None:
        """Record all metrics of one step; numbers that are not finite are kept as null. Returns once they are on disk."""
        line = _encode(step, metrics)
        if self._lines.get(step) == line:
            return
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines[step] = line

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class MetricsScan:
    """The readable steps in ascending order, each once, and how many lines could not be read."""

    steps: dict[int, dict[str, float]]
    damaged: int


def scan_metrics(path: Path) -> MetricsScan:
    """Read what is there, also of a run that is still being written: a line without its newline is not there yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = [_decode(line) for line in lines]
    found = dict(record for record in records if record)
    return MetricsScan(dict(sorted(found.items())), records.count(None))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """One dict a step, ascending, with its number under "step"; null comes back as NaN. An absent file has no steps."""
    return [{"step": step, **metrics} for step, metrics in scan_metrics(path).steps.items()]


def _encode(step: int, metrics: Metrics) -> bytes:
    values = {name: _plain(value) for name, value in metrics.items() if name != "step"}
    return json.dumps({"step": step, **values}, allow_nan=False).encode() + b"\n"


def _plain(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _decode(line: bytes) -> tuple[int, dict[str, float]] | None:
    try:
        record = json.loads(line)
        step = record.pop("step")
        return (step, {name: _number(value) for name, value in record.items()}) if isinstance(step, int) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _number(value: Any) -> float:
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return math.nan if value is None else value


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)
