"""Random weights of the tiny model as versions of a run, and what transformers says of them."""

import json
from pathlib import Path

import pytest
import torch
from stored import write_stored
from torch import Tensor
from transformers import MiMoV2FlashForCausalLM

from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.epochs import Fence, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.weights.publish import publish_weights
from gagar_mcore.weights.storage import Storage

MODEL = preset("tiny")
PYTHON = Path(__file__).resolve().parents[2] / ".venv-sglang" / "bin" / "python"
needs_sglang = [
    pytest.mark.sglang,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"there is no {PYTHON}; `make test-sglang` makes it"),
]


def open_run(directory: Path) -> RunLayout:
    layout = RunLayout(directory)
    open_epoch(layout, 1, 0)
    return layout


def publish_random(layout: RunLayout, version: int) -> Path:
    """Loud enough that a wrong window, sink or router shows in the log-probs."""
    generator = torch.Generator().manual_seed(version)
    tensors = {name: _random(name, shape, generator) for name, shape in tensor_shapes(MODEL).items()}
    tokenizer = (shipped_checkpoint("tiny-mimo-v2") / "tokenizer.json").read_bytes()
    companions = {"config.json": json.dumps(to_hf(MODEL)).encode(), "tokenizer.json": tokenizer}

    def fill(directory: Path) -> dict:
        write_stored(Storage(MODEL, "fp32"), tensors.__getitem__, companions, directory)
        return {}

    return publish_weights(layout, version, fill, Fence(layout, 1))


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    return 0.1 * noise if len(shape) > 1 else 0.5 * noise


class Reference:
    """transformers' own model of one version."""

    def __init__(self, directory: Path) -> None:
        self.model = MiMoV2FlashForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        self._chosen: list[Tensor] = []
        for layer in self.model.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts.register_forward_pre_hook(lambda _, given: self._chosen.append(given[1]))

    @torch.no_grad()
    def logprobs(self, ids: list[int], temperature: float = 1.0) -> Tensor:
        """`[len(ids) - 1]`, of each id after the first."""
        logits = self.model(torch.tensor([ids])).logits[0, :-1] / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    def experts(self, ids: list[int]) -> Tensor:
        """`[len(ids), layers with experts, top_k]`, in ascending order."""
        self._chosen.clear()
        self.logprobs(ids)
        return torch.stack(self._chosen, dim=1).sort(-1).values
