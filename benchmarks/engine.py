"""Tokens a second of the embedded engine beside `transformers` `model.generate`, in one run, on one tiny random model.

    python benchmarks/engine.py [--threads 1] [--rounds 3]

The work: sessions in groups, of several turns each; every turn appends an observation and generates 24 tokens.
`engine, shared` runs sessions as they come; `engine, isolated` (deterministic mode) runs each group's turn as a call of its
own; `generate` gets a turn of all sessions, or of one group, as a left-padded batch and prefills it anew.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded, worker_environment
from gagar_mcore.engine.protocol import Engine, GenerateRequest

GROUPS, MEMBERS, TURNS, NEW_TOKENS = 16, 8, 3, 24
VOCAB, PAD, MAX_CONTEXT = 512, 0, 500


def context(group: int, member: int, turn: int) -> list[int]:
    """The prompt, the same for a group, or what follows turn `turn - 1`; lengths differ."""
    rng = random.Random(f"{group} {0 if turn == 0 else member} {turn}")
    return [rng.randrange(5, VOCAB) for _ in range(rng.randrange(60, 100) if turn == 0 else rng.randrange(4, 40))]


def make_model(directory: Path) -> None:
    import torch
    from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

    from gagar_mcore.models.mimo_v2 import preset, to_hf

    torch.manual_seed(0)
    MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**to_hf(preset("tiny")))).save_pretrained(directory)


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


async def engine_arm(directory: Path, threads: int, deterministic: bool, rounds: int) -> list[float]:
    section = EngineSection(max_batch=GROUPS * MEMBERS, threads=threads)
    log = directory / "engine.log"
    engine = await start_embedded(directory, 0, section, log, max_context=MAX_CONTEXT, deterministic=deterministic)
    calls = [range(MEMBERS)] if deterministic else [range(m, m + 1) for m in range(MEMBERS)]
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        await asyncio.gather(*(play(engine, group, members) for group in range(GROUPS) for members in calls))
        seconds.append(time.perf_counter() - start)
    await engine.close()
    return seconds


def generate_arm(directory: Path, batch: int, rounds: int) -> list[float]:
    import torch
    from transformers import MiMoV2FlashForCausalLM

    model = MiMoV2FlashForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_TOKENS, "pad_token_id": PAD}

    def play_batch(sessions: list[tuple[int, int]]) -> None:
        ids: list[list[int]] = [[] for _ in sessions]
        for turn in range(TURNS):
            ids = [i + context(group, member, turn) for i, (group, member) in zip(ids, sessions, strict=True)]
            width = max(map(len, ids))
            padded = torch.tensor([[PAD] * (width - len(i)) + i for i in ids])
            mask = torch.tensor([[0] * (width - len(i)) + [1] * len(i) for i in ids])
            with torch.inference_mode():
                new = model.generate(padded, attention_mask=mask, **options)[:, width:]
            ids = [i + n for i, n in zip(ids, new.tolist(), strict=True)]

    sessions = [(group, member) for group in range(GROUPS) for member in range(MEMBERS)]
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for first in range(0, len(sessions), batch):
            play_batch(sessions[first : first + batch])
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    environment = worker_environment(options.threads)
    if not environment.items() <= os.environ.items():  # the peer runs here: it gets what the engine gets
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment)

    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    threads, rounds, everyone = options.threads, options.rounds, GROUPS * MEMBERS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_model(directory)
        arms: dict[str, Callable[[], list[float]]] = {
            f"engine, shared, {everyone} rows": lambda: asyncio.run(
                engine_arm(directory, options.threads, False, options.rounds)
            ),
            f"engine, isolated, {MEMBERS} rows": lambda: asyncio.run(
                engine_arm(directory, options.threads, True, options.rounds)
            ),
            f"generate, {everyone} rows": lambda: generate_arm(directory, everyone, rounds),
            f"generate, {MEMBERS} rows": lambda: generate_arm(directory, MEMBERS, rounds),
        }
        tokens = everyone * TURNS * NEW_TOKENS
        print(f"{everyone} sessions x {TURNS} turns x {NEW_TOKENS} tokens, {threads} threads; {os.cpu_count()} cores")
        for arm, run in arms.items():
            rates = sorted(tokens / seconds for seconds in run())
            print(f"{arm:28} {statistics.median(rates):8.0f} tokens/s  ({rates[0]:.0f} to {rates[-1]:.0f})", flush=True)


if __name__ == "__main__":
    main()
