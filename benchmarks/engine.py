"""Tokens a second of the embedded engine beside `transformers` `model.generate`, in one run, on one tiny random model.

    python benchmarks/engine.py [--threads 1] [--rounds 3]

The work: sessions in groups, of several turns each; every turn adds context and generates 24 tokens. `engine, shared` runs
sessions as they come; `engine, isolated` (deterministic mode) runs each group's turn as a call of its own; `generate` gets a
turn of all sessions, or of one group, as a left-padded batch and prefills it anew. Rounds alternate between the arms; where
other work shares the cores, compare tokens a CPU second.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import EmbeddedEngine, start_embedded, worker_environment
from gagar_mcore.engine.protocol import Engine, GenerateRequest

GROUPS, MEMBERS, TURNS, NEW_TOKENS = 16, 8, 3, 24
EVERYONE = GROUPS * MEMBERS
VOCAB, PAD, MAX_CONTEXT = 512, 0, 500


def context(group: int, member: int, turn: int) -> list[int]:
    """The prompt, the same for a group, or what follows turn `turn - 1`; lengths differ."""
    rng = random.Random(f"{group} {0 if turn == 0 else member} {turn}")
    return [rng.randrange(5, VOCAB) for _ in range(rng.randrange(60, 100) if turn == 0 else rng.randrange(4, 40))]


async def play(engine: Engine, group: int, members: range) -> None:
    """Some sessions of a group, turn by turn in one call each."""
    ids: dict[int, list[int]] = {member: [] for member in members}
    for turn in range(TURNS):
        for member in members:
            ids[member] = ids[member] + context(group, member, turn)
        requests = [GenerateRequest(f"{group}-{m}", ids[m], NEW_TOKENS, 1.0, group * 100 + m, ()) for m in members]
        for member, answer in zip(members, await engine.generate(requests), strict=True):
            ids[member] = ids[member] + answer.token_ids
    for member in members:
        await engine.end_session(f"{group}-{member}")


async def engine_round(engine: EmbeddedEngine, together: int) -> None:
    """`together` sessions of a group share each call."""
    parts = [range(m, m + together) for m in range(0, MEMBERS, together)]
    await asyncio.gather(*(play(engine, group, members) for group in range(GROUPS) for members in parts))


async def generate_round(model: Any, batch: int) -> None:
    sessions = [(group, member) for group in range(GROUPS) for member in range(MEMBERS)]
    for first in range(0, EVERYONE, batch):
        generate_turns(model, sessions[first : first + batch])


def generate_turns(model: Any, sessions: list[tuple[int, int]]) -> None:
    import torch

    ids: list[list[int]] = [[] for _ in sessions]
    for turn in range(TURNS):
        ids = [i + context(group, member, turn) for i, (group, member) in zip(ids, sessions, strict=True)]
        width = max(map(len, ids))
        padded = torch.tensor([[PAD] * (width - len(i)) + i for i in ids])
        mask = torch.tensor([[0] * (width - len(i)) + [1] * len(i) for i in ids])
        with torch.inference_mode():
            output = model.generate(
                padded, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=NEW_TOKENS, pad_token_id=PAD
            )
        ids = [i + new for i, new in zip(ids, output[:, width:].tolist(), strict=True)]


def tiny_model(directory: Path) -> Any:
    import torch
    from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM
    from transformers.utils import logging

    from gagar_mcore.models.huggingface import to_hf
    from gagar_mcore.models.presets import preset

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**to_hf(preset("tiny")))).eval()
    model.save_pretrained(directory)
    return model


def cpu_seconds(engines: list[EmbeddedEngine]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in (os.getpid(), *(engine.pid for engine in engines))]
    return sum(t.user + t.system for t in times)


async def compare(threads: int, rounds: int, directory: Path) -> None:
    model = tiny_model(directory)
    section = EngineSection(max_batch=EVERYONE, threads=threads)
    async with AsyncExitStack() as stack:
        engines = []
        for deterministic in (False, True):
            log = directory / "engine.log"
            engine = await start_embedded(directory, 0, section, log, max_context=MAX_CONTEXT, deterministic=deterministic)
            stack.push_async_callback(engine.close)
            engines.append(engine)
        shared, isolated = engines
        arms: dict[str, Callable[[], Awaitable[None]]] = {
            f"engine, shared, {EVERYONE} rows": lambda: engine_round(shared, 1),
            f"generate, {EVERYONE} rows": lambda: generate_round(model, EVERYONE),
            f"engine, isolated, {MEMBERS} rows": lambda: engine_round(isolated, MEMBERS),
            f"generate, {MEMBERS} rows": lambda: generate_round(model, MEMBERS),
        }
        seconds: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms}
        for _ in range(rounds):
            for arm, run in arms.items():
                wall, cpu = time.perf_counter(), cpu_seconds(engines)
                await run()
                seconds[arm].append((time.perf_counter() - wall, cpu_seconds(engines) - cpu))
    report(seconds)


def report(seconds: dict[str, list[tuple[float, float]]]) -> None:
    tokens = EVERYONE * TURNS * NEW_TOKENS
    print(f"{'':28} tokens a second: median (range)    a CPU second")
    for arm, measured in seconds.items():
        wall, cpu = (sorted(tokens / s for s in column) for column in zip(*measured, strict=True))
        columns = [f"{statistics.median(rates):7.0f} ({rates[0]:.0f} to {rates[-1]:.0f})" for rates in (wall, cpu)]
        print(f"{arm:28} {columns[0]:>28} {columns[1]:>24}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    environment = worker_environment(options.threads)
    if not environment.items() <= os.environ.items():  # the peer runs here: it gets what the engine gets
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment)

    import torch

    torch.set_num_threads(options.threads)
    print(f"{EVERYONE} sessions x {TURNS} turns x {NEW_TOKENS} tokens; {options.threads} threads, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(compare(options.threads, options.rounds, Path(directory)))


if __name__ == "__main__":
    main()
