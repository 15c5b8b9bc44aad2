"""A tiny dense model of transformers with random weights, and conversations for it to learn from."""

import json
from pathlib import Path

from chat_models import chat_tokenizer


def write_dense_checkpoint(directory: Path) -> Path:
    """Qwen3 with two layers and ChatML, in Hugging Face format."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory.mkdir(parents=True)
    tokenizer = chat_tokenizer()
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size() + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def write_conversations(path: Path, count: int, first: int = 0) -> Path:
    """Sums to say, of unequal lengths, one of them with weights of its own."""
    lines = []
    for number in range(first, first + count):
        answers = [{"role": "assistant", "content": f"{number + turn}."} for turn in range(1 + number % 3)]
        asked = [{"role": "user", "content": f"{number} + {turn} " + "and so on " * (number % 4)} for turn in range(len(answers))]
        messages = [message for pair in zip(asked, answers, strict=True) for message in pair]
        if number % 5 == 0:
            messages[-1]["weight"] = 0.25
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path
