"""What `gagar train` shows while it works: a live view on a terminal, one plain line a step elsewhere."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console as RichConsole
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gagar_mcore.tracking.metrics import Metrics
from gagar_mcore.tracking.text import clip, visible

RECENT_STEPS = 8
SPARK_STEPS = 40
MESSAGE_CHARACTERS = 2000
History = tuple[tuple[int, Metrics], ...]
_SPARKS = "▁▂▃▄▅▆▇█"
_CURVES = (
    ("pass", "rollout/pass_rate", "cyan"),
    ("clean", "rollout/clean_share", "green"),
    ("held-back pass", "eval/pass_rate", "cyan"),
    ("held-back clean", "eval/clean_share", "green"),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Progress within the current step."""

    name: str
    done: int
    total: int
    counts: dict[str, int] = field(default_factory=dict)


class Console:
    """The view of one run of `steps` steps. Text handed in is shown as it is: neither markup nor control codes act.

    All state is replaced, never changed in place: the live view draws from a thread of its own.
    """

    def __init__(self, title: str, steps: int, file: TextIO | None = None) -> None:
        self._title = visible(title)
        self._steps = steps
        self._rich = RichConsole(file=file or sys.stdout, highlight=False)
        self._started = time.monotonic()
        self._stages: dict[str, Stage] = {}
        self._current = 0
        self._begun: tuple[float, int] | None = None
        self._history: History = ()
        self._live = Live(get_renderable=self._render, console=self._rich, refresh_per_second=4) if self._is_live else None

    @property
    def _is_live(self) -> bool:
        return self._rich.is_terminal and not self._rich.is_dumb_terminal and self._rich.encoding.startswith("utf")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def stage(self, name: str, done: int, total: int, **counts: int) -> None:
        """`done` of `total` (groups, say) of a stage of the current step; `counts` are shown beside the bar."""
        self._begun = self._begun or (time.monotonic(), self._current)
        self._stages = {**self._stages, name: Stage(name, done, total, counts)}

    def step_finished(self, step: int, metrics: Metrics) -> None:
        """The metrics of a finished step, of this start or of an earlier one; step 0 is the evaluation of the initial policy."""
        self._history = (*self._history, (step, metrics))
        self._stages = {}
        self._current = step
        if not self._live:
            self._print(step_line(step, self._steps, metrics))

    def message(self, text: str) -> None:
        """A line above the view."""
        self._print(clip(visible(text), MESSAGE_CHARACTERS))

    def _print(self, text: str) -> None:
        encoded = text.encode(self._rich.encoding, "backslashreplace")
        self._rich.print(Text(encoded.decode(self._rich.encoding)), soft_wrap=not self._live)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [_progress(self._stages)] if self._stages else []
        if self._history:
            parts.append(_curves(self._history))
        if trained := [(step, m) for step, m in self._history if "rollout/pass_rate" in m]:
            parts.append(_steps_table(tuple(trained[-RECENT_STEPS:])))
        return Panel(
            Stack(*parts) if parts else Text("starting", style="dim"),
            title=Text(self._title, style="bold"),
            title_align="left",
            subtitle=Text(self._position(), style="dim"),
            subtitle_align="right",
            border_style="cyan",
        )

    def _position(self) -> str:
        now = time.monotonic()
        words = f"step {min(self._current + 1, self._steps)} of {self._steps}, {_clock(now - self._started)}"
        if self._begun is None or not self._begun[1] < self._current < self._steps:
            return words
        began, first = self._begun
        pace = (now - began) / (self._current - first)
        return f"{words}, about {_clock(pace * (self._steps - self._current))} left"


def step_line(step: int, steps: int, metrics: Metrics) -> str:
    """One line that says how a step went."""
    parts = [f"step {step}/{steps}"]
    if "eval/pass_rate" in metrics:
        parts.append(f"held-back pass {_number(metrics, 'eval/pass_rate')} clean {_number(metrics, 'eval/clean_share')}")
    if "rollout/pass_rate" in metrics:
        parts += [f"{title} {cell}" for title, cell in _cells(metrics).items()]
    return "  ".join(parts)


def _cells(metrics: Metrics) -> dict[str, str]:
    """Column title to cell: tiers in percent, seconds of collection (grading within it) + training."""
    return {
        "reward": _number(metrics, "rollout/reward_mean"),
        "pass": _number(metrics, "rollout/pass_rate"),
        "clean": _number(metrics, "rollout/clean_share"),
        "tiers": "/".join(_number(metrics, f"grading/tier{tier}", ".0f", 100) for tier in (1, 2, 3)),
        "λ": _number(metrics, "credit/lambda_mean"),
        "tokens": _number(metrics, "rollout/tokens_mean", ".1f"),
        "turns": _number(metrics, "rollout/turns_mean", ".1f"),
        "entropy": _number(metrics, "rollout/entropy"),
        "Δlogp": _number(metrics, "train/rollout_logprob_abs_diff", ".0e"),
        "seconds": "+".join(_number(metrics, f"time/{stage}", ".1f") for stage in ("collect", "train")),
    }


def _number(metrics: Metrics, name: str, form: str = ".2f", scale: int = 1) -> str:
    value = metrics.get(name, math.nan)
    return f"{scale * value:{form}}" if math.isfinite(value) else "-"


def _steps_table(history: History) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for title in ("step", *_cells({})):
        table.add_column(title, justify="right", no_wrap=True)
    for step, metrics in history:
        table.add_row(str(step), *_cells(metrics).values(), style="bold" if step == history[-1][0] else None)
    return table


def _progress(stages: dict[str, Stage]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", min_width=9)
    grid.add_column(width=24)
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    for stage in stages.values():
        bar = ProgressBar(total=max(stage.total, 1), completed=stage.done, width=24, complete_style="cyan")
        counts = " · ".join(f"{name.replace('_', ' ')} {count}" for name, count in stage.counts.items())
        grid.add_row(Text(visible(stage.name)), bar, f"{stage.done}/{stage.total}", Text(counts))
    return grid


def _curves(history: History) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right")
    for title, name, style in _CURVES:
        values = [value for _, m in history if math.isfinite(value := m.get(name, math.nan))]
        if values:
            change = f"{values[0]:.2f} → {values[-1]:.2f}" if len(values) > 1 else f"{values[0]:.2f}"
            grid.add_row(title, Text(sparkline(values[-SPARK_STEPS:]), style=style), change)
    return grid


def sparkline(values: Sequence[float]) -> str:
    """Shares as a row of bars, from the fifth below the least of them to the fifth above the greatest."""
    low, high = math.floor(5 * min(values)) / 5, math.ceil(5 * max(values)) / 5
    height = (len(_SPARKS) - 1) / max(high - low, 0.2)
    return "".join(_SPARKS[round((value - low) * height)] for value in values)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
