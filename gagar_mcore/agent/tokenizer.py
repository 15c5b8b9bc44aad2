"""The tokenizer of small policies: byte-level BPE, whose markers no text can spell."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MARKERS = ("<|pad|>", "<|user|>", "<|act|>", "<|end|>", "<|obs|>")
PAD, USER, ACT, END, OBS = range(len(MARKERS))


def train_tokenizer(texts: Sequence[str], vocab_size: int = 512) -> Any:
    """A `tokenizers.Tokenizer` with `MARKERS` as ids 0 to 4 and every byte in its alphabet.

    Raises ValueError where a text holds a marker: a merge could then spell it, and text would become a marker's id.
    """
    for index, text in enumerate(texts):
        for marker in MARKERS:
            if marker in text:
                raise ValueError(f"texts[{index}]: holds the marker {marker}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(MARKERS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
