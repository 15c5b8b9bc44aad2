"""Tokens a second of fine-tuning steps: this trainer in one process and in layouts, beside transformers with PyTorch's AdamW and
beside DeepSpeed ZeRO-2, on the same model, sequences and cores.

    python benchmarks/trainer.py [--steps N] [--layout "tp2 ep2" ...] [--deepspeed PYTHON] [--json]
    python benchmarks/trainer.py --device cuda --preset mini [--local] [--profile]

Every contender is a group of processes of its own; those of as many processes take their steps in turn, and the fastest step
counts. `even`
sequences have one length, which costs nobody padding; `ragged` ones are long-tailed, packed here and padded to the longest of a
batch by the peers. DeepSpeed is measured where `--deepspeed` names a Python that has it (`make deepspeed`)."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gagar_mcore.bench import arguments
from gagar_mcore.bench.trainer_step import DEADLINE, WARM_UP, sizes

MODULE = "gagar_mcore.bench.trainer_step"
STEPS = 20
PAUSE = 0.002  # seconds between looks at a contender
STOP_DEADLINE = 60.0  # seconds
LAYOUTS = ("tp2", "dp2", "pp2", "cp2", "tp2 ep2", "dp2 ep2")
SHOWN = ("padding_share", "flop_imbalance", "mfu", "peak_gib")
DEEPSPEED = Path(".venv-deepspeed/bin/python")


@dataclass(frozen=True, slots=True)
class Contender:
    """implementation: `gagar`, `transformers` or `deepspeed`; layout: sizes as in `tp2 ep2`, of gagar, or `dp2` of DeepSpeed;
    local: gagar with Megatron's own modules also where Transformer Engine is."""

    implementation: str
    lengths: str
    layout: str = ""
    preset: str = "tiny"
    device: str = "cpu"
    steps: int = STEPS
    profile: bool = False
    local: bool = False

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.implementation, self.layout, self.lengths)))


def run(contenders: Sequence[Contender], deepspeed: Path | None) -> dict[str, Any]:
    """`[name]`: figures by the fastest step. Raises RuntimeError, with the end of its output, for a contender that fails or is
    late."""
    figures: dict[str, Any] = {}
    for size in sorted({_world_size(contender.layout) for contender in contenders}):
        figures |= _in_turn([contender for contender in contenders if _world_size(contender.layout) == size], deepspeed)
    return figures


def ratios(best: dict[str, Any]) -> dict[str, float]:
    """What is claimed, as quotients of tokens a second."""
    claims = {
        "one process, even lengths: gagar / transformers": ("gagar even", "transformers even"),
        "ragged lengths: gagar packed / transformers padded": ("gagar ragged", "transformers ragged"),
        "two processes, even lengths: gagar dp2 / DeepSpeed ZeRO-2": ("gagar dp2 even", "deepspeed dp2 even"),
    }
    speeds = {name: figures["tokens_per_second"] for name, figures in best.items()}
    return {claim: speeds[a] / speeds[b] for claim, (a, b) in claims.items() if a in speeds and b in speeds}


def _in_turn(contenders: Sequence[Contender], deepspeed: Path | None) -> dict[str, Any]:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        output = Path(stack.enter_context(TemporaryDirectory()))
        running = [Running(contender, _start(contender, store.port, output, deepspeed), output) for contender in contenders]
        for each in running:
            stack.callback(each.stop)
        for number in range(WARM_UP + contenders[0].steps):
            for each in running:
                store.set(f"{each.contender.name}/{number}", "")
                each.await_(partial(_all_have, store, f"{each.contender.name}/{number} done", _world_size(each.contender.layout)))
        for each in running:
            store.set(f"{each.contender.name}/end", "")
            each.await_(each.has_ended)
        return {each.contender.name: each.figures() for each in running}


def _all_have(store: Any, key: str, ranks: int) -> bool:
    return bool(store.add(key, 0) >= ranks)


@dataclass(frozen=True, slots=True)
class Running:
    """A contender's processes; `output` has what they print."""

    contender: Contender
    launcher: subprocess.Popen[bytes]
    output: Path

    def await_(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE.total_seconds()
        while not condition():
            if self.launcher.poll() or time.monotonic() > deadline:
                why = f"failed with {self.launcher.returncode}" if self.launcher.returncode else f"took more than {DEADLINE}"
                raise RuntimeError(f"{self.contender.name} {why}:\n{self._file('err').read_text()[-2000:]}")
            time.sleep(PAUSE)

    def has_ended(self) -> bool:
        return self.launcher.poll() == 0

    def figures(self) -> dict[str, Any]:
        lines = self._file("out").read_text().splitlines()
        figures: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        return figures

    def stop(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.terminate()
        self.launcher.wait(STOP_DEADLINE)

    def _file(self, suffix: str) -> Path:
        return self.output / f"{self.contender.name}.{suffix}"


def _start(contender: Contender, port: int, output: Path, deepspeed: Path | None) -> subprocess.Popen[bytes]:
    python = str(deepspeed) if contender.implementation == "deepspeed" else sys.executable
    ranks = _world_size(contender.layout)
    threads = max(1, (os.cpu_count() or 1) // ranks)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "DS_ACCELERATOR": "cpu"}
    if contender.implementation == "deepspeed":
        environment |= _deepspeed_environment(Path(python).absolute().parent)
    launch = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
    setting = asdict(contender) | {"name": contender.name, "port": port}
    with (output / f"{contender.name}.out").open("wb") as out, (output / f"{contender.name}.err").open("wb") as err:
        return subprocess.Popen([*launch, "-m", MODULE, json.dumps(setting)], env=environment, stdout=out, stderr=err)


def _deepspeed_environment(programs: Path) -> dict[str, str]:
    """It looks for ninja on the path, and compiles what it needs where nobody else does: PyTorch waits without end for the lock
    of a compilation that was killed."""
    compiled = programs.parent / "torch_extensions"
    for lock in compiled.glob("*/lock"):
        lock.unlink()
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TORCH_EXTENSIONS_DIR": str(compiled)}


def _world_size(layout: str) -> int:
    size = 1
    for name in ("tp", "pp", "cp", "dp"):
        size *= sizes(layout).get(name, 1)
    return size


def contenders(options: argparse.Namespace) -> list[Contender]:
    common = {"preset": options.preset, "device": options.device, "steps": options.steps, "profile": options.profile}
    if options.device == "cuda":
        return [Contender("gagar", "long", local=options.local, **common)]
    found = [Contender(who, lengths, **common) for lengths in ("even", "ragged") for who in ("gagar", "transformers")]
    found += [Contender("gagar", "even", layout, **common) for layout in options.layout or LAYOUTS]
    found += [Contender("gagar", "ragged", "dp2", **common)]
    if options.deepspeed.is_file():
        found += [Contender("deepspeed", "even", layout, **common) for layout in ("", "dp2")]
    return found


def show(best: dict[str, Any], claims: dict[str, float]) -> None:
    first = best["gagar even"]["tokens_per_second"] if "gagar even" in best else None
    for name, figures in best.items():
        relative = f"{figures['tokens_per_second'] / first:6.2f} of one process" if first else ""
        extra = "".join(f"  {key} {value:.3g}" for key, value in figures.items() if key in SHOWN)
        print(f"{name:28} {figures['tokens_per_second']:10.0f} tokens/s {relative}{extra}")
        for cost in figures.get("costs", ()):
            print(f"    {cost['share']:6.1%}  {cost['name']}")
    for claim, ratio in claims.items():
        print(f"{claim}: {ratio:.2f}")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=arguments.positive, default=STEPS)
    parser.add_argument("--layout", action="append", help="sizes, like 'tp2 ep2'; may be given several times")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--device", type=arguments.device, default="cpu")
    parser.add_argument("--local", action="store_true", help="on a GPU, without Transformer Engine")
    parser.add_argument("--deepspeed", type=Path, default=DEEPSPEED, help="a Python that has deepspeed")
    parser.add_argument("--profile", action="store_true", help="the three largest costs of a step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not options.deepspeed.is_file() and not options.json:
        print(f"{options.deepspeed}: no such Python, so DeepSpeed is left out; `make deepspeed` makes it")
    best = run(contenders(options), options.deepspeed)
    if options.json:
        print(json.dumps({"best": best, "ratios": ratios(best)}, indent=1))
    else:
        show(best, ratios(best))


if __name__ == "__main__":
    main()
