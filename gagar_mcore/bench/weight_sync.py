"""New weights from trainer to engine: bytes and seconds by mode, beside a plain copy of the same files in the same run.

A random mixture of experts of each size is served by SGLang's real server, on the CPU. In each round a step changes some of the
values, the version is published, what it changed is too, and the server is brought to it in every mode, one after the other. A
file counts as copied or published when it is on the disk (fsync); a mode's time is that from the order to the server's checksum.
Medians of the rounds."""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gagar_mcore.bench import arguments
from gagar_mcore.bench.synced_run import SyncedRun, model_of
from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.attach import AttachedServer
from gagar_mcore.engine.server import ServerProcess, start_server
from gagar_mcore.engine.sglang import SGLangEngine
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.weights.sender import sending

SGLANG = Path(".venv-sglang/bin/python")
MODES = ("disk", "tensor", "distributed", "delta")
START_S = 300.0
CONTEXT = 64
Figures = dict[str, dict[str, float]]


def copy_durably(source: Path, target: Path) -> None:
    """A plain copy of a directory's files, on the disk when it returns."""
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
        with open(target / path.name, "rb") as file:
            os.fsync(file.fileno())


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


async def measure(run: SyncedRun, python: Path, modes: Sequence[str], rounds: int, share: float) -> Figures:
    """`[what][figure]`. Raises EngineError where the server does not start, or refuses weights."""
    server = ServerSection(python=str(python), precision="bf16")
    section = EngineSection(kind="sglang", max_batch=1, threads=os.cpu_count() or 1, start_timeout_s=START_S, server=server)
    serving = Serving("policy", run.publish(), 0, run.model, CONTEXT)
    process = await start_server(serving, section, run.layout.logs / "engine.log")
    engines = {mode: _engine(process, serving, section, mode) for mode in modes}
    taken: list[Figures] = []
    try:
        for engine in engines.values():  # once, for the first copy of a delta's base among other things
            await engine.load_weights(serving.weights, 0)
        for _ in range(rounds):
            run.step(share)
            taken.append(await _round(run, engines))
    finally:
        for engine in engines.values():
            await engine.close()
        await process.close()
    return {what: {key: statistics.median(each[what][key] for each in taken) for key in taken[0][what]} for what in taken[0]}


def _engine(process: ServerProcess, serving: Serving, section: EngineSection, mode: str) -> SGLangEngine:
    server = section.server.model_copy(update={"update": mode})
    return SGLangEngine(AttachedServer(process.endpoint), serving, section.model_copy(update={"server": server}))


async def _round(run: SyncedRun, engines: dict[str, SGLangEngine]) -> Figures:
    publishing, weights = await asyncio.to_thread(timed, run.publish)
    copying, _ = await asyncio.to_thread(timed, lambda: copy_durably(weights, run.layout.root / f"copy-{run.version}"))
    shutil.rmtree(run.layout.root / f"copy-{run.version}")
    comparing, delta = await asyncio.to_thread(timed, run.publish_delta)
    size = float(_bytes_of(weights))
    figures: Figures = {"copy": {"seconds": copying, "bytes": size}, "publish": {"seconds": publishing, "bytes": size}}
    figures["publish delta"] = {"seconds": comparing, "bytes": float(_bytes_of(delta))}
    for mode, engine in engines.items():
        started = time.perf_counter()
        await engine.load_weights(weights, run.version)
        moved = figures["publish delta"]["bytes"] if mode == "delta" else size
        figures[mode] = {"seconds": time.perf_counter() - started, "bytes": moved}
    return figures


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def claims(figures: Figures) -> dict[str, float]:
    """What is to be reached, as quotients within the run."""
    found = {"delta bytes / all bytes": figures["publish delta"]["bytes"] / figures["publish"]["bytes"]}
    if "disk" in figures:
        whole = figures["publish"]["seconds"] + figures["disk"]["seconds"]
        found["disk publish + load / copy, seconds"] = whole / figures["copy"]["seconds"]
    return found


def run(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By size, `640 MB`: figures and claims."""
    found: dict[str, dict[str, Any]] = {}
    for megabytes in options.megabytes or (100, 500):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=options.folder)))
            synced = SyncedRun(model_of(megabytes * 10**6, options.format), options.format, folder)
            stack.enter_context(sending(folder))
            figures = asyncio.run(measure(synced, options.python, options.mode or MODES, options.rounds, options.changed))
            found[f"{megabytes} MB"] = {"figures": figures, "claims": claims(figures)}
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    for size, result in found.items():
        copy = result["figures"]["copy"]["seconds"]
        print(size)
        for what, figures in result["figures"].items():
            relative = f"{figures['seconds'] / copy:6.2f} of the copy"
            print(f"  {what:14} {figures['seconds']:8.3f} s {relative}  {figures['bytes'] / 1e6:9.1f} MB")
        for claim, ratio in result["claims"].items():
            print(f"  {claim}: {ratio:.3f}")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=arguments.positive, action="append", help="of weights; may be given several times")
    parser.add_argument("--mode", choices=MODES, action="append", help="may be given several times; all where it is not")
    parser.add_argument("--format", choices=("bf16", "fp32"), default="bf16", help="of the published weights")
    parser.add_argument("--changed", type=arguments.share, default=0.03, help="share of the values that a step changes")
    parser.add_argument("--rounds", type=arguments.positive, default=3)
    parser.add_argument("--folder", type=Path, help="where the run lies; that of temporary files where it is not given")
    parser.add_argument("--python", type=Path, default=SGLANG, help="a Python that has SGLang")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not options.python.is_file():
        parser.error(f"--python: {options.python}: no such Python; `make {SGLANG.parts[0]}/.installed` makes one that has SGLang")
    found = run(options)
    print(json.dumps(found, indent=1)) if options.json else show(found)


if __name__ == "__main__":
    main()
