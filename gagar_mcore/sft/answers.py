"""What a checkpoint says where held-out conversations have their last answer, compared with that."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gagar_mcore.agent.renderer import load_renderer
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.devices import device_environment
from gagar_mcore.launcher.local import ManagedProcess, rank_environment
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import write_file
from gagar_mcore.sft.data import SftData, read_sft_data
from gagar_mcore.sft.generate import Job
from gagar_mcore.sft.train import HELDOUT

POLL_SECONDS = 0.1
Score = Callable[[Sequence[tuple[str, str]]], Mapping[str, float]]
"""Numbers by name, of pairs of texts: an answer as it was held out, and what the model says in its place."""


async def evaluate_answers(recipe: Recipe, layout: RunLayout, score: Score, checkpoint: Path, step: int) -> Mapping[str, float]:
    """Generate the last answers of the first `sft.heldout_answers` held-out conversations, each from all that came before it, and
    score them. Raises ProcessFailed where the process that generates fails."""
    renderer = load_renderer(checkpoint)
    prompts, held = split_answers(read_sft_data(layout.root / HELDOUT), recipe.sft.heldout_answers)
    job = Job(
        checkpoint=checkpoint,
        prompts=prompts,
        stop=list(renderer.stop_token_ids),
        max_new_tokens=recipe.sft.max_new_tokens,
        device=recipe.engine.device,
        threads=recipe.trainer.threads,
    )
    said = await _generate(job, layout.evaluation(step) / "answers", layout.logs / "answers.log")
    return score([(renderer.decode(expected), renderer.decode(ids)) for expected, ids in zip(held, said, strict=True)])


def split_answers(data: SftData, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Of the first `count` sequences: all before the last answer that has a loss weight, and that answer."""
    before, answers = [], []
    for start, end in zip(data.cu_seqlens[:count], data.cu_seqlens[1 : count + 1], strict=False):
        weighted = np.asarray(data.loss_weights[start:end]) > 0
        last = int(np.flatnonzero(weighted)[-1]) + 1
        first = int(np.flatnonzero(~weighted[:last])[-1]) + 1  # the first token of a sequence never has a weight
        tokens = data.tokens[start:end].tolist()
        before.append(tokens[:first])
        answers.append(tokens[first:last])
    return before, answers


def equal_share(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """How many answers are what was held out, word for word."""
    return {"answers_equal": sum(expected == said for expected, said in pairs) / len(pairs)}


async def _generate(job: Job, folder: Path, log: Path) -> list[list[int]]:
    write_file(folder / "job.json", job.model_dump_json().encode())
    out = folder / "said.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gagar_mcore.sft.generate", str(folder / "job.json"), str(out)]
    environment = rank_environment(job.threads) | device_environment(job.device)
    process = await ManagedProcess.start("generation of held-out answers", command, log, environment)
    try:
        while process.exit_code is None:
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await process.stop()
    process.check()
    said: list[list[int]] = json.loads(out.read_text())
    return said
