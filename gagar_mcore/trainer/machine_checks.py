"""What `gagar doctor --gpu` computes, in a process of its own: `python -m gagar_mcore.trainer.machine_checks OUT --device cuda`.

OUT gets one JSON object a line as soon as a check is over: `name`, `ok`, `detail`, `mend`."""

import argparse
import importlib.metadata
import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from gagar_mcore.config.learning import ModelSection, TrainerSection
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.devices import Device
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.models.presets import PRESETS
from gagar_mcore.ops import reference
from gagar_mcore.ops.build import BuildError
from gagar_mcore.ops.fused import policy_loss
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.library import open_library
from gagar_mcore.ops.spec import LOSSES, LossName, LossSpec

log = logging.getLogger(__name__)
STEP_BOUND = 1e-5
SINKS_CUDNN = 91800  # from there on: learnable sinks over packed sequences
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
MODEL = replace(PRESETS["tiny"], sliding_window=8)  # one key more or less in so short a window shows


@dataclass(frozen=True, slots=True)
class Answer:
    ok: bool
    detail: str
    mend: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="where the answers go")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    arguments = parser.parse_args()
    die_with_parent()
    os.environ.update(ONE_RANK)
    from gagar_mcore.trainer.rank import start_rank

    start_rank(one_rank(arguments.device, "bf16"))
    with open(arguments.out, "w") as out:
        for name, check in checks().items():
            answer = answer_of(check, arguments.device)
            print(json.dumps({"name": name, **asdict(answer)}), file=out, flush=True)
    torch.distributed.destroy_process_group()


def checks() -> dict[str, Callable[[Device], Answer]]:
    found: dict[str, Callable[[Device], Answer]] = {"fused step": fused_step, "model, Megatron's modules": local_parity}
    if transformer_engine() is not None:
        found |= {"Transformer Engine": engine_needs, "model, Transformer Engine's modules": engine_parity}
    return found | {"two training steps": training_steps}


def answer_of(check: Callable[[Device], Answer], device: Device) -> Answer:
    """A check that raises, wherever in the stack, has found something."""
    try:
        return check(device)
    except Exception as error:
        log.exception("a check failed")
        first = next(iter(str(error).strip().splitlines()), "")
        return Answer(False, f"{type(error).__name__}: {first}", "the log below has all of it")


def fused_step(device: Device) -> Answer:
    """Each policy loss, compiled, against plain PyTorch."""
    try:
        open_library(device)
    except BuildError as error:
        return Answer(
            False, f"plain PyTorch runs in its place, slower: {error}", "install nvcc 12 or newer, or a wheel built with it"
        )
    worst = max(step_difference(name, device) for name in LOSSES)
    return Answer(
        worst <= STEP_BOUND, f"differs from PyTorch by {worst:.1e} (bound {STEP_BOUND:.0e})", "report it with this output"
    )


def step_difference(name: LossName, device: Device) -> float:
    """Of losses and gradients, relative to the largest entry."""
    generator = torch.Generator().manual_seed(11)
    layout = TokenLayout.build(torch.tensor([0, 7, 3000, 5000])).to(device)
    columns = -6.0 + 0.2 * torch.randn(2, layout.num_tokens, generator=generator)
    flags = torch.randint(0, 4, (layout.num_tokens,), generator=generator, dtype=torch.uint8)
    sequences = torch.tensor([[0.5, -0.5, 0.25], [1e-3, 2e-3, 1e-3]], dtype=torch.float64)
    results = []
    for step in (policy_loss, reference.policy_loss):
        logprobs = columns[0].to(device).requires_grad_()
        rollout, rest = columns[1].to(device), sequences.to(device)
        loss, _ = step(logprobs, rollout, flags.to(device), rest[0], rest[1], layout, LossSpec(name))
        loss.backward()
        results.append((loss.detach().view(1), logprobs.grad))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))


def engine_needs(device: Device) -> Answer:
    """What its fused attention asks for where sinks meet packed sequences."""
    cudnn = torch.backends.cudnn.version() or 0
    deterministic = os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"
    found = f"{transformer_engine()}, cuDNN {cudnn}, NVTE_ALLOW_NONDETERMINISTIC_ALGO={int(not deterministic)}"
    mends = [f"upgrade nvidia-cudnn to 9.18 or newer ({SINKS_CUDNN})"] if cudnn < SINKS_CUDNN else []
    mends += ["unset NVTE_ALLOW_NONDETERMINISTIC_ALGO"] if deterministic else []
    return Answer(not mends, found, "; ".join(mends))


def local_parity(device: Device) -> Answer:
    from gagar_mcore.models.backends import local_backend
    from gagar_mcore.trainer.parity import compare, compute

    backend = local_backend()
    exact = compute(MODEL, one_rank(device, "fp32"), backend)
    difference = compare(compute(MODEL, one_rank(device, "bf16"), backend), exact)
    return Answer(difference.is_rounding, f"bf16 against fp32: {difference}", "report it with this output")


def engine_parity(device: Device) -> Answer:
    from gagar_mcore.models.backends import local_backend, transformer_engine_backend
    from gagar_mcore.trainer.parity import compare, compute

    own = compute(MODEL, one_rank(device, "bf16"), local_backend())
    difference = compare(compute(MODEL, one_rank(device, "bf16"), transformer_engine_backend()), own)
    mend = "report it with this output, and pip uninstall transformer-engine: Megatron's own modules serve then"
    return Answer(difference.is_rounding, f"against Megatron's, both bf16: {difference}", mend)


def training_steps(device: Device) -> Answer:
    """All of a step: packing, loss, reduction, clipping, Adam; the second from what the first left."""
    from gagar_mcore.trainer.parity import parity_batch, parity_tensors
    from gagar_mcore.trainer.policy import apply_batch
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import load_tensors

    trainer = one_rank(device, "bf16")
    recipe = Recipe(name="checks", output="none", model=ModelSection(init="random"), trainer=trainer)
    policy = build_policy(MODEL, trainer)
    load_tensors(policy.chunks, MODEL, parity_tensors(MODEL))
    first, second = (apply_batch(policy, parity_batch(MODEL), recipe, step) for step in (1, 2))
    numbers = first["train/loss"], second["train/loss"], first["train/grad_norm"], second["train/grad_norm"]
    detail = "losses {:.4f}, {:.4f}, gradient norms {:.3f}, {:.3f}".format(*numbers)
    return Answer(all(map(math.isfinite, numbers)), detail, "report it with this output")


def one_rank(device: Device, precision: Literal["fp32", "bf16"]) -> TrainerSection:
    return TrainerSection(device=device, tp=1, ep=1, precision=precision, freeze_router=False)


def transformer_engine() -> str | None:
    """Its version."""
    try:
        return f"transformer-engine {importlib.metadata.version('transformer-engine')}"
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
