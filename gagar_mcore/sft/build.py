"""From the task generator to what fine-tuning reads: a tokenizer, packed demonstrations, an initial checkpoint directory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gagar_mcore.agent.calls import Answer
from gagar_mcore.agent.renderer import TOKENIZER_FILE, Renderer, render_session
from gagar_mcore.agent.tokenizer import train_tokenizer
from gagar_mcore.config.sft import SftSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.sft.data import SftData, write_sft_data
from gagar_mcore.sft.demonstrations import Demonstration, demonstration
from gagar_mcore.tasks.generate import generate_task

TOKENIZER_DEMONSTRATIONS = 1500


def demonstrations(section: SftSection, count: int, purpose: int) -> Iterator[Demonstration]:
    """One demonstration each of `count` fresh tasks; another `purpose` gives other tasks."""
    seed = section.demonstration_seed + purpose
    return (demonstration(generate_task(seed, i), seed, i, section.failing, section.sloppy) for i in range(count))


def write_random_start(model: ModelConfig, section: SftSection, directory: Path) -> None:
    """A checkpoint directory without weights: the configuration and a tokenizer trained on demonstrations."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(to_hf(model), indent=1))
    texts = [
        text
        for shown in demonstrations(section, TOKENIZER_DEMONSTRATIONS, purpose=1)
        for text in (shown.prompt, *(part for turn in shown.turns for part in turn if part))
    ]
    train_tokenizer(texts, model.vocab_size).save(str(directory / TOKENIZER_FILE))


def build_sft_data(section: SftSection, renderer: Renderer) -> SftData:
    """`steps * sequences_per_step` rendered demonstrations: loss weight 1 on actions, `context_weight` elsewhere."""
    rendered = [
        render_session(renderer, shown.prompt, [(Answer(action), seen) for action, seen in shown.turns])
        for shown in demonstrations(section, section.steps * section.sequences_per_step, purpose=0)
    ]
    weights = [np.where(np.asarray(mask) == 1, 1.0, section.context_weight) for _, mask in rendered]
    for sequence in weights:
        sequence[0] = 0.0
    return SftData(
        tokens=np.concatenate([np.asarray(ids, np.int32) for ids, _ in rendered]),
        loss_weights=np.concatenate(weights).astype(np.float32),
        cu_seqlens=np.cumsum([0, *(len(ids) for ids, _ in rendered)], dtype=np.int64),
        steps=np.arange(section.steps + 1, dtype=np.int64) * section.sequences_per_step,
    )


def fill_sft_data(directory: Path, section: SftSection, renderer: Renderer) -> dict[str, Any]:
    """Write the data of `build_sft_data`; returns the manifest's metadata."""
    data = build_sft_data(section, renderer)
    write_sft_data(data, directory)
    return {"sequences": len(data.cu_seqlens) - 1, "tokens": len(data.tokens)}
