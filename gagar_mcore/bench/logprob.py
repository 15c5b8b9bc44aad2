"""Peak memory and time of `ops.logprob` beside plain log_softmax, forward and backward, each measurement in a fresh process.

    python benchmarks/logprob.py [--case TOKENSxVOCABULARYxHIDDEN ...] [--json]

Rounds alternate between the two; seconds are medians, of a second call in a process. Where other work shares the cores, compare
CPU seconds, best with `--threads 1`. Peak is what the first call takes beside its inputs: resident memory of the process, or
allocated memory of the GPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gagar_mcore.bench import arguments
from gagar_mcore.bench.resident import peak, reset_peak

if TYPE_CHECKING:
    from torch import Tensor

CASES = ("2048x32768x256", "16384x32768x256", "4096x65536x512", "2048x151936x1024")
FORM = "TOKENSxVOCABULARYxHIDDEN"
MODULE = "gagar_mcore.bench.logprob"
VARIANTS = ("plain", "chunked")
DEADLINE = 1800.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One measurement. case: `TOKENSxVOCABULARYxHIDDEN`; chunk_mib: scratch of the chunked variant; threads: 0 is torch's
    choice."""

    variant: str
    case: str
    dtype: str
    device: str
    chunk_mib: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class Measured:
    peak_bytes: int
    seconds: float
    cpu_seconds: float


def run(
    cases: Sequence[str] = CASES,
    *,
    dtype: str = "float32",
    device: str = "auto",
    chunk_mib: int | None = None,
    threads: int = 0,
    rounds: int = 3,
) -> dict[str, Any]:
    """One entry a case: peak and seconds of each variant, and the ratios plain / chunked. Raises RuntimeError with the end of its
    output where a measurement fails."""
    settings = {"dtype": dtype, "device": arguments.device(device), "chunk_mib": chunk_mib, "threads": threads}
    return {**settings, "rounds": rounds, "cases": [_compare(case, rounds, settings) for case in cases]}


def _compare(case: str, rounds: int, settings: dict[str, Any]) -> dict[str, Any]:
    measured: dict[str, list[Measured]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            measured[variant].append(_measure_apart(Setting(variant, case, **settings)))
    plain, chunked = (_summary(runs) for runs in measured.values())
    return {
        "case": case,
        "plain": asdict(plain),
        "chunked": asdict(chunked),
        "memory_ratio": plain.peak_bytes / chunked.peak_bytes,
        "time_ratio": plain.seconds / chunked.seconds,
        "cpu_time_ratio": plain.cpu_seconds / chunked.cpu_seconds,
    }


def _summary(runs: list[Measured]) -> Measured:
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*((m.seconds, m.cpu_seconds) for m in runs), strict=True))
    return Measured(max(m.peak_bytes for m in runs), seconds, cpu_seconds)


def _measure_apart(setting: Setting) -> Measured:
    command = [sys.executable, "-m", MODULE, "--measure", json.dumps(asdict(setting))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring {setting} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout))


def measure(setting: Setting) -> Measured:
    """In this process, which should have done nothing before."""
    import torch

    if setting.threads:
        torch.set_num_threads(setting.threads)
    arguments = _inputs(setting)
    step = _plain if setting.variant == "plain" else _chunked
    _step(step, _inputs(Setting(**(asdict(setting) | {"case": "8x64x8"}))), setting)  # libraries load and start their threads
    reset, peak = _memory(setting.device)
    before = reset()
    _step(step, arguments, setting)
    peak_bytes = peak() - before
    wall, cpu = time.perf_counter(), time.process_time()
    _step(step, arguments, setting)
    return Measured(peak_bytes, time.perf_counter() - wall, time.process_time() - cpu)


def _inputs(setting: Setting) -> tuple["Tensor", "Tensor", "Tensor"]:
    import torch

    tokens, vocabulary, hidden_size = map(int, setting.case.split("x"))
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, setting.dtype)
    hidden, weight = (torch.randn(n, hidden_size, generator=generator) for n in (tokens, vocabulary))
    weight *= hidden_size**-0.5
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    hidden, weight = (t.to(setting.device, dtype).requires_grad_() for t in (hidden, weight))
    return hidden, weight, targets.to(setting.device)


def _step(function: Callable[..., "Tensor"], inputs: tuple["Tensor", "Tensor", "Tensor"], setting: Setting) -> None:
    """Forward and backward; the gradients are dropped."""
    import torch

    hidden, weight, targets = inputs
    function(hidden, weight, targets, setting).sum().backward()
    hidden.grad = weight.grad = None
    if setting.device == "cuda":
        torch.cuda.synchronize()


def _plain(hidden: "Tensor", weight: "Tensor", targets: "Tensor", _: Setting) -> "Tensor":
    return (hidden @ weight.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]


def _chunked(hidden: "Tensor", weight: "Tensor", targets: "Tensor", setting: Setting) -> "Tensor":
    from gagar_mcore.ops.logprob import linear_logprobs

    chunk_bytes = None if setting.chunk_mib is None else setting.chunk_mib * MIB
    logprobs, _ = linear_logprobs(hidden, weight, targets, chunk_bytes=chunk_bytes)
    return logprobs


def _memory(device: str) -> tuple[Callable[[], int], Callable[[], int]]:
    """A function that forgets the peak and returns what is in use, and one that returns the peak since, both in bytes."""
    if device == "cuda":
        import torch

        def reset() -> int:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()

        return reset, torch.cuda.max_memory_allocated
    return reset_peak, peak


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="gagar bench logprob", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case", action="append", type=arguments.case_of(FORM), metavar=FORM, help=f"default: {', '.join(CASES)}"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", type=arguments.device, default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--chunk-mib", type=arguments.positive, help="scratch memory of the chunked variant; default: as the device has it"
    )
    parser.add_argument("--threads", type=arguments.count, default=0, help="CPU threads, 0: torch's choice")
    parser.add_argument("--rounds", type=arguments.positive, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = vars(parser.parse_args(argv))
    as_json, setting, cases = options.pop("json"), options.pop("measure"), options.pop("case")
    if setting is not None:
        print(json.dumps(asdict(measure(Setting(**setting)))))
        return
    result = run(cases or CASES, **options)
    print(json.dumps(result) if as_json else table(result))


def table(result: dict[str, Any]) -> str:
    head = f"{'case':>20}" + "".join(f"{f'{what}: plain':>16}{'chunked':>9}{'ratio':>7}" for what in ("MiB", "s", "CPU s"))
    rows = [
        f"{entry['case']:>20}"
        + _columns(entry, "peak_bytes", "memory_ratio", MIB, ".0f")
        + _columns(entry, "seconds", "time_ratio", 1, ".2f")
        + _columns(entry, "cpu_seconds", "cpu_time_ratio", 1, ".2f")
        for entry in result["cases"]
    ]
    return "\n".join([f"{result['dtype']} on {result['device']}, forward and backward", head, *rows])


def _columns(entry: dict[str, Any], field: str, ratio: str, unit: float, form: str) -> str:
    plain, chunked = (format(entry[variant][field] / unit, form) for variant in VARIANTS)
    return f"{plain:>16}{chunked:>9}{entry[ratio]:7.2f}"


if __name__ == "__main__":
    main()
