"""The fused advantage step beside eager PyTorch and beside a memory copy that moves the same bytes, all in one run.

    python benchmarks/fused_step.py [--case TOKENSxSEQUENCES ...] [--loss mimo|ppo|gspo|cispo] [--json]

Rounds alternate between the variants; seconds are medians. `step` is the operator alone, `fused` with autograd's backward;
`eager` the reference of the product, `loop` slices one sequence after another (`mimo` and `ppo`); both with backward.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gagar_mcore.bench import arguments
from gagar_mcore.ops.build import BuildError, register_report

if TYPE_CHECKING:
    from torch import Tensor

SEQUENCES = (1, 64, 1024)
TOKENS = {"cpu": (1 << 16, 1 << 20, 4 << 20), "cuda": (1 << 14, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 64 << 20)}
# Log-prob, rollout log-prob, flags, gradient; ppo: old and reference log-prob, too; gspo reads its columns twice.
BYTES = {"mimo": 13, "ppo": 21, "gspo": 22, "cispo": 13}
LOOPS = ("mimo", "ppo")
FORM = "TOKENSxSEQUENCES"
EAGER_LIMIT = 16 << 20  # tokens beyond which the eager variants need too much memory


@dataclass(frozen=True, slots=True)
class Columns:
    """One packed batch without padding, and what a loss needs of it."""

    logprobs: "Tensor"
    rollout: "Tensor"
    flags: "Tensor"
    advantages: "Tensor"
    weights: "Tensor"
    cu_seqlens: "Tensor"
    old: "Tensor | None"
    ref: "Tensor | None"


def run(
    cases: Sequence[str] | None = None, *, loss: str = "mimo", device: str = "auto", threads: int = 0, rounds: int = 7
) -> dict[str, Any]:
    """One entry a case: seconds of each variant, and ratios to the copy and to the better of the eager ones."""
    import torch

    device = arguments.device(device)
    if threads:
        torch.set_num_threads(threads)
    entries = [measure(case, loss, device, rounds) for case in cases or default_cases(device)]
    return {"loss": loss, "device": device, "threads": torch.get_num_threads(), "rounds": rounds, "cases": entries}


def default_cases(device: str) -> list[str]:
    return [f"{tokens}x{sequences}" for tokens in TOKENS[device] for sequences in SEQUENCES]


def measure(case: str, loss: str, device: str, rounds: int) -> dict[str, Any]:
    tokens, sequences = map(int, case.split("x"))
    if sequences >= tokens:
        raise ValueError(f"{case}: a case has more tokens than sequences")
    columns = make_columns(tokens, sequences, loss, device)
    variants = make_variants(columns, loss, tokens * BYTES[loss])
    seconds = time_variants(variants, device, rounds)
    eager = min((seconds[name] for name in ("eager", "loop") if name in seconds), default=None)
    return {
        "case": case,
        "seconds": seconds,
        "step_to_copy": seconds["step"] / seconds["copy"],
        "fused_to_copy": seconds["fused"] / seconds["copy"],
        "eager_to_fused": None if eager is None else eager / seconds["fused"],
    }


def make_columns(tokens: int, sequences: int, loss: str, device: str) -> Columns:
    """Sequences of unequal length, 60 % of the tokens trained, policies about 0.2 apart."""
    import torch

    generator = torch.Generator().manual_seed(0)
    cuts = torch.randperm(tokens - 1, generator=generator)[: sequences - 1].add(1).sort().values
    cu_seqlens = torch.cat([torch.tensor([0]), cuts, torch.tensor([tokens])])

    def near(column: "Tensor") -> "Tensor":
        return column + 0.2 * torch.randn(tokens, generator=generator)

    rollout = -3 * torch.rand(tokens, generator=generator)
    flags = (torch.rand(tokens, generator=generator) < 0.6).to(torch.uint8)
    numbers = torch.randn(2, sequences, generator=generator, dtype=torch.float64)
    return Columns(
        logprobs=near(rollout).to(device),
        rollout=rollout.to(device),
        flags=flags.to(device),
        advantages=numbers[0].to(device),
        weights=numbers[1].abs().div(tokens).to(device),
        cu_seqlens=cu_seqlens.to(device),
        old=near(rollout).to(device) if loss == "ppo" else None,
        ref=near(rollout).to(device) if loss == "ppo" else None,
    )


def make_variants(columns: Columns, loss: str, num_bytes: int) -> dict[str, Callable[[], object]]:
    import torch

    from gagar_mcore.ops import fused, reference
    from gagar_mcore.ops.layout import TokenLayout
    from gagar_mcore.ops.spec import LossSpec

    spec = LossSpec("ppo", tis_cap=2.0, kl_coef=0.01) if loss == "ppo" else LossSpec(loss)  # type: ignore[arg-type]
    layout = TokenLayout.build(columns.cu_seqlens)
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device=columns.flags.device)
    target = torch.empty_like(source)
    leaf = columns.logprobs.clone().requires_grad_()

    def forward(implementation: Any, logprobs: "Tensor") -> "Tensor":
        columns_of_tokens = (logprobs, columns.rollout, columns.flags, columns.advantages, columns.weights)
        more = {"old_logprobs": columns.old, "ref_logprobs": columns.ref}
        return implementation.policy_loss(*columns_of_tokens, layout, spec, **more)[0]

    def with_backward(loss_of: Callable[[], "Tensor"]) -> Callable[[], None]:
        def call() -> None:
            leaf.grad = None
            loss_of().backward()

        return call

    variants: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "step": lambda: forward(fused, columns.logprobs),
        "fused": with_backward(lambda: forward(fused, leaf)),
    }
    if len(columns.flags) <= EAGER_LIMIT:
        variants["eager"] = with_backward(lambda: forward(reference, leaf))
    if len(columns.flags) <= EAGER_LIMIT and loss in LOOPS:
        bounds = columns.cu_seqlens.tolist()
        variants["loop"] = with_backward(lambda: loop_loss(leaf, columns, bounds, spec))
    return variants


def loop_loss(logprobs: "Tensor", columns: Columns, bounds: list[int], spec: Any) -> "Tensor":
    """The loss and the same token statistics, sequence by sequence, as a training script would write it."""
    import torch

    loss, stats = logprobs.new_zeros(()), logprobs.new_zeros(4)
    for s, (begin, end) in enumerate(pairwise(bounds)):
        new, rollout = logprobs[begin : end - 1], columns.rollout[begin + 1 : end]
        mask = columns.flags[begin + 1 : end].float()
        advantage = columns.advantages[s].float().expand_as(new)
        low, high = spec.bounds[0]
        if columns.old is None or columns.ref is None:
            ratio = (new.detach() - rollout).exp()
            inside = (ratio >= low) & (ratio <= high)
            value = -(ratio * inside * advantage) * new
        else:
            old, gap = columns.old[begin : end - 1], columns.ref[begin : end - 1] - new
            ratio = (new - old).exp()
            value = torch.maximum(-ratio * advantage, -ratio.clamp(low, high) * advantage)
            value = torch.where(advantage < 0, torch.minimum(value, -spec.dual_clip * advantage), value)
            value = value * (old - rollout).exp().clamp(max=spec.tis_cap) + spec.kl_coef * (gap.exp() - 1 - gap)
            inside = (ratio >= low) & (ratio <= high)
        loss = loss + columns.weights[s].float() * (value * mask).sum()
        seen = (mask, ~inside * mask, ratio.detach() * mask, (new.detach() - rollout).abs() * mask)
        stats = stats + torch.stack([column.sum() for column in seen])
    return loss


def time_variants(variants: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, variant in variants.items():
            if name in ("eager", "loop") and turn > max(2, rounds // 3):
                continue
            wait()
            started = time.perf_counter()
            variant()
            wait()
            if turn:  # the first round compiles, loads and allocates
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="gagar bench fused-step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    case = arguments.case_of(FORM)
    parser.add_argument("--case", action="append", type=case, metavar=FORM, help="may be given again")
    parser.add_argument("--loss", choices=tuple(BYTES), default="mimo")
    parser.add_argument("--device", type=arguments.device, default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=arguments.count, default=0, help="CPU threads, 0: torch's choice")
    parser.add_argument("--rounds", type=arguments.positive, default=7)
    parser.add_argument("--registers", action="store_true", help="only what nvcc says of the CUDA kernels on sm_90")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = vars(parser.parse_args(argv))
    as_json, cases, registers = (options.pop(name) for name in ("json", "case", "registers"))
    try:
        result = kernels() if registers else run(cases, **options)
    except (ValueError, BuildError) as error:
        parser.error(str(error))
    print(json.dumps(result) if as_json else table(result))


def kernels() -> dict[str, Any]:
    return {"kernels": [asdict(kernel) for kernel in register_report()]}


def table(result: dict[str, Any]) -> str:
    if "kernels" in result:
        return "\n".join(
            f"{k['name']:<20} {k['registers']:>4} registers {k['spilled_bytes']:>4} bytes spilled" for k in result["kernels"]
        )
    names, ratios = ("copy", "step", "fused", "eager", "loop"), ("step_to_copy", "fused_to_copy", "eager_to_fused")
    head = f"{'case':>14}" + "".join(f"{name + ' ms':>11}" for name in names) + "".join(f"{name:>16}" for name in ratios)
    rows = [f"{result['loss']} on {result['device']}, {result['threads']} threads", head]
    for entry in result["cases"]:
        times = "".join(f"{number(entry['seconds'].get(name), 1e3):>11}" for name in names)
        rows.append(f"{entry['case']:>14}" + times + "".join(f"{number(entry[name]):>16}" for name in ratios))
    return "\n".join(rows)


def number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.2f}"


if __name__ == "__main__":
    main()
