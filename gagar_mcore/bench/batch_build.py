"""The batch of a step, built from its trajectories and published: tokens and bytes a second and peak memory by size, beside a
plain write of as many bytes and, where `--verl` names a Python that has it, verl's padded tensors of the same trajectories.

    python benchmarks/batch_build.py [--millions N ...] [--rounds N] [--folder DIR] [--verl PYTHON] [--json]

Every way runs in a process of its own, the ways of a size in turn; figures are medians over the rounds, and so is the ratio of
the two writes of a round. A write counts once it is on the disk (fsync). Trajectories are long-tailed, 6,000 tokens at the
median; they are in memory before the clock starts."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from gagar_mcore.bench import arguments

MODULE = "gagar_mcore.bench.batch_build_way"
ROOT = Path(__file__).parents[2]
MILLIONS = (1, 10, 50)
MILLION = 1_000_000
ROUNDS = 3
VERL = Path(".venv-verl/bin/python")
VERL_MOST = 10  # millions of tokens: padded, more do not fit into a laptop
DEADLINE_S = 1800

Figures = dict[str, float]


def measure(way: str, tokens: int, folder: Path, python: Path, size: int = 0) -> Figures:
    """One round. Raises RuntimeError with the end of what it printed where it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory(dir=folder, prefix="batch-build-") as place:
        command = [str(python), "-m", MODULE, way, str(tokens), place, str(size)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} of {tokens:,} tokens failed with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(tokens: int, rounds: int, folder: Path, verl: Path | None) -> dict[str, Any]:
    """The ways of one size in turn, and the medians of each."""
    here = Path(sys.executable)
    found: dict[str, list[Figures]] = {"gagar": [], "plain": [], "verl": []}
    for _ in range(rounds):
        found["gagar"].append(measure("gagar", tokens, folder, here))
        found["plain"].append(measure("plain", tokens, folder, here, int(found["gagar"][0]["bytes"])))
        if verl is not None:
            found["verl"].append(measure("verl", tokens, folder, verl))
    ways = {way: _medians(some) for way, some in found.items() if some}
    speeds = {way: {**f, "tokens_per_second": tokens / f["seconds"]} for way, f in ways.items()}
    share = median(p["seconds"] / g["seconds"] for p, g in zip(found["plain"], found["gagar"], strict=True))
    return {"tokens": tokens, "ways": speeds, "of_plain_write": share}


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {name: median(figures[name] for figures in rounds) for name in rounds[0]}


def show(case: dict[str, Any]) -> None:
    for way, f in case["ways"].items():
        rate = f"{f['tokens_per_second'] / MILLION:8.2f} M tokens/s {f['bytes'] / f['seconds'] / 2**20:8.0f} MiB/s"
        print(f"{case['tokens'] / MILLION:6.1f} M  {way:6} {rate}  {f['bytes'] / 2**20:8.0f} MiB  peak {f['peak_mib']:7.0f} MiB")
    print(f"          {case['of_plain_write']:.2f} of the plain write")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=arguments.positive, nargs="+", default=MILLIONS, help="sizes, in millions of tokens")
    parser.add_argument("--rounds", type=arguments.positive, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--verl", type=Path, default=VERL, help="a Python that has verl")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not options.verl.is_file() and not options.json:
        print(f"{options.verl}: no such Python, so verl is left out")
    cases = []
    for millions in options.millions:
        verl = options.verl.absolute() if options.verl.is_file() and millions <= VERL_MOST else None
        cases.append(compare(millions * MILLION, options.rounds, options.folder.absolute(), verl))
        if not options.json:
            show(cases[-1])
    if options.json:
        print(json.dumps({"cases": cases}, indent=1))


if __name__ == "__main__":
    main()
