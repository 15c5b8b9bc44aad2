"""Small stand-ins for the tokenizers of Qwen3 and MiMo: byte-level BPE of a few hundred tokens with the names, the `special`
flags and the NFC normalisation of the published ones. The published files are not at hand: ids and merges differ."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WRAPPERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEXTS = [
    "user\nassistant\nsystem\ntool\n",
    "<function=bash>\n<parameter=command>ls -l</parameter>\n</function>",
    "def add(x):\n\n    return x",
]


def chat_tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS * 20, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in WRAPPERS])
    return tokenizer


def write_chat_checkpoint(directory: Path, preset_name: str) -> Path:
    """Configuration and tokenizer of a checkpoint, without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    chat_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(to_hf(preset(preset_name))))
    return directory
