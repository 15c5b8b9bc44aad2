"""Weights of small models as versions of a run, `gagar serve` at work on them, and what transformers says of them."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from stored import write_stored
from torch import Tensor
from transformers import AutoModelForCausalLM

from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf
from gagar_mcore.models.presets import preset
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.epochs import Fence, open_epoch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.weights.publish import publish_weights
from gagar_mcore.weights.storage import Storage

MODEL = preset("tiny")
PYTHON = Path(__file__).resolve().parents[2] / ".venv-sglang" / "bin" / "python"
START_S = 240
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
    tokenizer = (shipped_checkpoint("tiny-mimo-v2") / "tokenizer.json").read_bytes()
    return publish(layout, version, MODEL, random_tensors(MODEL, version), {"tokenizer.json": tokenizer})


def publish(
    layout: RunLayout, version: int, model: ModelConfig, tensors: Mapping[str, Tensor], companions: Mapping[str, bytes]
) -> Path:
    companions = {"config.json": json.dumps(to_hf(model)).encode(), **companions}

    def fill(directory: Path) -> dict:
        write_stored(Storage(model, "fp32"), tensors.__getitem__, companions, directory)
        return {}

    return publish_weights(layout, version, fill, Fence(layout, 1))


def random_tensors(model: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Loud enough that a wrong window, sink or router shows in the log-probs."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in tensor_shapes(model).items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    return 0.1 * noise if len(shape) > 1 else 0.5 * noise


def gagar(*words: str) -> list[str]:
    return [sys.executable, "-m", "gagar_mcore.cli", *words]


class Serve:
    """`gagar serve ROLE tiny` of a run. What it says is in `said`."""

    def __init__(self, layout: RunLayout, role: str, *overrides: str) -> None:
        section = "engine" if role == "policy" else "grading.engine"
        engine = [f"{section}.server.python={PYTHON}", f"{section}.start_timeout_s={START_S}", f"{section}.max_batch=8"]
        self.said = layout.root / f"serve-{role}.txt"
        self.address = layout.server(role)
        kind = [f"{section}.kind=sglang", f"output={layout.root}"]
        with open(self.said, "a") as out:
            command = gagar("serve", role, "tiny", *kind, *engine, *overrides)
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def wait(self) -> "Serve":
        """Until its server can be asked."""
        deadline = time.monotonic() + START_S
        while not self.address.is_file():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.5)
        return self

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Reference:
    """transformers' own model of one version."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
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
