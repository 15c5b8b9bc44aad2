"""Following the ranks of a fine-tuning: what they report is measured further, logged, shown; what is no longer needed goes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.launcher.local import ManagedProcess, ProcessFailed, log_tail
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import MANIFEST, unpublish_directory
from gagar_mcore.sft.loop import is_measured, weights_after
from gagar_mcore.sft.train import STEPS
from gagar_mcore.tracking.metrics import Metrics, scan_metrics
from gagar_mcore.tracking.tracker import Tracker

POLL_SECONDS = 0.5
SHOW_EVERY = 50

Evaluation = Callable[[Path, int], Awaitable[Mapping[str, float]]]
"""What is made of the weights in a directory in Hugging Face format, after a step: numbers by name. A restart asks again for a
step that it did not log."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Logs each step of the run once, those before a restart included."""

    recipe: Recipe
    layout: RunLayout
    tracker: Tracker
    evaluations: Sequence[Evaluation]

    async def follow(self, process: ManagedProcess) -> None:
        """Until the ranks have ended and every step is logged. Raises ProcessFailed where they fail, or report nothing for longer
        than the recipe allows a step."""
        patience = self.recipe.trainer.start_timeout_s + self.recipe.trainer.step_timeout_s
        path, seen, deadline = self.layout.root / STEPS, -1, time.monotonic() + patience
        while True:
            ended = process.exit_code is not None  # asked first, so that nothing said before it is missed
            size = path.stat().st_size if path.is_file() else 0
            if size != seen:
                await self.log_new()
                seen, deadline = size, time.monotonic() + patience
            if ended:
                break
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"fine-tuning has made no step for {patience:.0f} s; {process.log} ends:\n{log_tail(process.log)}"
                )
            await asyncio.sleep(POLL_SECONDS)
        process.check()

    async def log_new(self) -> None:
        logged = max(scan_metrics(self.layout.metrics).steps, default=0)
        for step, metrics in scan_metrics(self.layout.root / STEPS).steps.items():
            if step > logged:
                await self._log(step, metrics)

    async def _log(self, step: int, metrics: Metrics) -> None:
        section = self.recipe.sft
        measured = is_measured(section, step, section.steps)
        if measured:
            metrics = {**metrics, **await self._evaluate(step)}
        self.tracker.log(step, metrics)
        if measured or step % SHOW_EVERY == 0:
            print(_line(step, section.steps, metrics), flush=True)
        self._tidy()

    async def _evaluate(self, step: int) -> dict[str, float]:
        weights = weights_after(self.layout, step, self.recipe.sft.steps)
        found: dict[str, float] = {}
        try:
            async with asyncio.timeout(self.recipe.sft.eval_timeout_s):
                for evaluation in self.evaluations:
                    found |= {f"eval/{name}": float(value) for name, value in (await evaluation(weights, step)).items()}
        except TimeoutError:
            print(f"step {step}: not evaluated within sft.eval_timeout_s={self.recipe.sft.eval_timeout_s:g}", flush=True)
            found["eval/timed_out"] = 1.0
        return found

    def _tidy(self) -> None:
        """Keep the newest of weights and checkpoints, as many as the recipe says."""
        keep = self.recipe.retention
        for folder, count in (("weights", keep.weights), ("checkpoints", keep.checkpoints)):
            published = sorted(path.parent for path in (self.layout.root / folder).glob(f"[0-9]*/{MANIFEST}"))
            for path in published[: -count or None] if count else []:
                unpublish_directory(path)


def _line(step: int, steps: int, metrics: Metrics) -> str:
    said = [f"step {step}/{steps}", f"loss {metrics['sft/loss']:.3f}", f"{metrics['sft/tokens_per_second']:.0f} tokens/s"]
    if "sft/heldout_loss" in metrics:
        said.append(f"held-out loss {metrics['sft/heldout_loss']:.3f}")
    evaluated = {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
    return "  ".join([*said, *(f"{name.replace('_', ' ')} {value:.3f}" for name, value in evaluated.items())])
