"""What a fine-tuning begins with where there is nothing yet: a configuration, and a tokenizer trained on demonstrations."""

import json
from pathlib import Path
from typing import Any

from gagar_mcore.agent.renderer import TOKENIZER_FILE
from gagar_mcore.agent.tokenizer import train_tokenizer
from gagar_mcore.config.sft import SftSection
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.sft.demonstrations import demonstrations

TOKENIZER_DEMONSTRATIONS = 1500


def fill_random_start(directory: Path, model: ModelConfig, section: SftSection) -> dict[str, Any]:
    """Fill a checkpoint directory without weights; returns the manifest's metadata."""
    (directory / "config.json").write_text(json.dumps(to_hf(model), indent=1))
    texts = [
        text
        for shown in demonstrations(section, TOKENIZER_DEMONSTRATIONS, purpose=1)
        for text in (shown.prompt, *(part for turn in shown.turns for part in turn if part))
    ]
    train_tokenizer(texts, model.vocab_size).save(str(directory / TOKENIZER_FILE))
    return {}
