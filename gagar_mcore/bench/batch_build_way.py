"""One way to put a step's trajectories on disk, measured in a process of its own: `batch_build_way.py WAY TOKENS FOLDER [BYTES]`
prints figures as JSON. Ways: `gagar`, `plain` (BYTES in one file) and `verl`, in a Python that has it."""

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from gagar_mcore.records.types import Credit, Group, Trajectory, Turn, WeightSpan

POOL, MEDIAN, SPREAD, LONGEST = 64, 6000, 1.0, 131_072  # trajectories, and their lengths in tokens
OBSERVATION, ANSWER = 400, 200  # tokens of a turn
GROUP_SIZE = 8
CHUNK_BYTES = 1 << 20

Figures = dict[str, float]


def pool() -> list[Trajectory]:
    """Trajectories of long-tailed lengths, the same in every process."""
    rng = np.random.default_rng(11)
    lengths = np.clip(np.exp(np.log(MEDIAN) + SPREAD * rng.standard_normal(POOL)), 2 * ANSWER + OBSERVATION, LONGEST)
    return [_trajectory(f"m{member:02d}", int(length), rng) for member, length in enumerate(lengths)]


def trajectories(tokens: int) -> Iterator[Trajectory]:
    """Those of the pool over and over, until there are so many tokens."""
    drawn = cycle(pool())
    while tokens > 0:
        trajectory = next(drawn)
        tokens -= len(trajectory.token_ids)
        yield trajectory


def groups(tokens: int) -> Iterator[tuple[Group, list[Trajectory]]]:
    members: list[Trajectory] = []
    for trajectory in trajectories(tokens):
        members.append(trajectory)
        if len(members) == GROUP_SIZE:
            yield _group(members), members
            members = []
    if members:
        yield _group(members), members


def gagar(tokens: int, folder: Path) -> Figures:
    from gagar_mcore.records.batch import KIND
    from gagar_mcore.records.layout import RunLayout
    from gagar_mcore.records.store import begin_directory, finish_directory
    from gagar_mcore.rollout.batching import BatchBuilder

    made, layout = groups(tokens), RunLayout(folder)
    first, started = next(made), time.perf_counter()
    directory = begin_directory(layout.batch(1))
    builder = BatchBuilder(directory, layout)
    builder.append(*first)
    for group, members in made:
        builder.append(group, members)
    meta, sums = builder.finish("prompt-mean")
    manifest = finish_directory(directory, layout.batch(1), KIND, 1, meta, lambda: None, sums)
    return figures(time.perf_counter() - started, sum(size for size, _ in manifest.files.values()))


def plain(size: int, folder: Path) -> Figures:
    """The same number of bytes into one file, from memory, and on the disk when it ends."""
    data = np.random.default_rng(1).bytes(CHUNK_BYTES)
    started = time.perf_counter()
    with open(folder / "plain", "wb", buffering=0) as file:
        for begin in range(0, size, CHUNK_BYTES):
            file.write(data[: size - begin])
        os.fsync(file.fileno())
    return figures(time.perf_counter() - started, size)


def verl(tokens: int, folder: Path) -> Figures:
    """As verl's agent loop collects a step: prompts and responses padded to the longest, `DataProto`, `save_to_disk`."""
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    rows = [_row(t) for t in trajectories(tokens)]
    started = time.perf_counter()
    prompts, answers = (max(len(row[part]) for row in rows) for part in ("prompt", "response"))
    columns: dict[str, Any] = {
        "prompts": torch.cat([_padded(row["prompt"], prompts, torch.long, left=True) for row in rows]),
        "responses": torch.cat([_padded(row["response"], answers, torch.long) for row in rows]),
        "response_mask": torch.cat([_padded(row["mask"], answers, torch.long) for row in rows]),
        "rollout_log_probs": torch.cat([_padded(row["logprobs"], answers, torch.float) for row in rows]),
    }
    there = [(_padded([1] * len(row["prompt"]), prompts, torch.long, left=True), len(row["response"])) for row in rows]
    own = torch.cat([_padded([1] * length, answers, torch.long) for _, length in there])
    columns["input_ids"] = torch.cat([columns["prompts"], columns["responses"]], dim=1)
    columns["attention_mask"] = torch.cat([torch.cat([mask for mask, _ in there]), own], dim=1)
    columns["position_ids"] = (columns["attention_mask"].cumsum(dim=1) - 1) * columns["attention_mask"]
    data = DataProto(TensorDict(columns, batch_size=len(rows)), {"uid": np.array([row["id"] for row in rows], dtype=object)})
    path = folder / "data"
    data.save_to_disk(path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return figures(time.perf_counter() - started, path.stat().st_size)


def figures(seconds: float, size: int) -> Figures:
    return {"seconds": seconds, "bytes": size}


def peak_mib() -> float:
    """The most memory that this process has held; of files that it wrote, what the system keeps does not count."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    way, tokens, folder, *size = sys.argv[1:]
    if way == "plain":
        found = plain(int(size[0]), Path(folder))
    else:
        found = {"gagar": gagar, "verl": verl}[way](int(tokens), Path(folder))
    print(json.dumps(found | {"peak_mib": peak_mib()}))


def _trajectory(name: str, length: int, rng: np.random.Generator) -> Trajectory:
    turns = (length - OBSERVATION) // (ANSWER + OBSERVATION) + 1
    mask = np.resize(np.repeat([0, 1], [OBSERVATION, ANSWER]), turns * (ANSWER + OBSERVATION)).astype(np.uint8)
    tokens, half = len(mask), len(mask) // 2
    return Trajectory(
        id=name,
        group_id="g",
        task_id="task",
        member=int(name[1:]),
        token_ids=rng.integers(0, 150_000, tokens).tolist(),
        logprobs=np.where(mask, -rng.random(tokens), 0.0).tolist(),
        loss_mask=mask.tolist(),
        weight_spans=[WeightSpan(0, 0, half), WeightSpan(1, half, tokens)],
        turns=[Turn(i, "", "bash", "", bool(rng.random() < 0.9), "stop", ANSWER, 0.0) for i in range(turns)],
        patch="",
        end_reason="finished",
        reward=0.0,
        valid=True,
    )


def _group(members: list[Trajectory]) -> Group:
    credit = Credit("grpo", True, None, None, 1.0, False, {t.id: 0.5 for t in members})
    return Group("g", 1, "task", [t.id for t in members], None, credit)


def _row(trajectory: Trajectory) -> dict[str, Any]:
    start = list(trajectory.loss_mask).index(1)
    ids, mask, logprobs = (list(c) for c in (trajectory.token_ids, trajectory.loss_mask, trajectory.logprobs))
    return {
        "id": trajectory.id,
        "prompt": ids[:start],
        "response": ids[start:],
        "mask": mask[start:],
        "logprobs": logprobs[start:],
    }


def _padded(numbers: list[Any], length: int, dtype: Any, left: bool = False) -> Any:
    import torch

    filling = [0] * (length - len(numbers))
    return torch.tensor(filling + numbers if left else numbers + filling, dtype=dtype).unsqueeze(0)


if __name__ == "__main__":
    main()
