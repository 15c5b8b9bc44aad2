"""One rank of a contender of `bench/trainer.py`: builds a random model, takes steps, prints its figures as JSON."""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

WARM_UP = 1
DEADLINE = timedelta(minutes=15)  # for a turn
TOKENS = 4096  # of a step, about
EVEN = 128
LONG_TOKENS = 131072
LR = 1e-3
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12}  # dense bf16, from NVIDIA's data sheets

Step = Callable[[], None]


def main() -> None:
    setting = json.loads(sys.argv[1])
    step, finish = {"gagar": gagar_step, "transformers": transformers_step, "deepspeed": deepspeed_step}[
        setting["implementation"]
    ](setting)
    turns = Turns(setting["name"], setting["port"])
    _, *seconds = [turns.take(number, step) for number in range(WARM_UP + setting["steps"])]
    tokens, fastest = int(sum(lengths(setting["lengths"]))), min(seconds)
    figures: dict[str, Any] = {"tokens": tokens, "seconds": fastest, "tokens_per_second": tokens / fastest, **finish(fastest)}
    turns.wait("end")
    if setting["profile"]:
        figures["costs"] = costs(step, setting["device"])
    if os.environ["RANK"] == "0":
        print(json.dumps(figures), flush=True)


class Turns:
    """Steps of contenders that run at the same time, one contender's step after another's, as `bench/trainer.py` tells them."""

    def __init__(self, name: str, port: int) -> None:
        from torch.distributed import TCPStore

        self.name, self.store = name, TCPStore("127.0.0.1", port, is_master=False, timeout=DEADLINE)

    def wait(self, turn: str) -> None:
        self.store.wait([f"{self.name}/{turn}"], DEADLINE)

    def take(self, number: int, step: Step) -> float:
        """Seconds of the step."""
        self.wait(str(number))
        started = time.perf_counter()
        step()
        seconds = time.perf_counter() - started
        self.store.add(f"{self.name}/{number} done", 1)
        return seconds


def sizes(layout: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", layout)}


def lengths(kind: str) -> np.ndarray:
    """Of a step's sequences: all of 128 tokens (`even`), log-normal ones with a median of 90, at most 1,000 (`ragged`), or with
    one of 3,000, at most 16,384 (`long`)."""
    if kind == "even":
        return np.full(TOKENS // EVEN, EVEN)
    median, longest, total = (3000, 16384, LONG_TOKENS) if kind == "long" else (90, 1000, TOKENS)
    drawn = np.random.default_rng(0).lognormal(np.log(median), 0.8, 1000).clip(8, longest).astype(np.int64)
    return drawn[: int(np.searchsorted(drawn.cumsum(), total))]


def sequences(kind: str, vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, vocab_size, length).astype(np.int32) for length in lengths(kind)]


def gagar_step(setting: dict[str, Any]) -> tuple[Step, Callable[[float], dict[str, float]]]:
    """A step of fine-tuning on all tokens; on a GPU in bf16."""
    from gagar_mcore.config.learning import TrainerSection
    from gagar_mcore.models.flops import training_flops
    from gagar_mcore.models.init import random_tensors
    from gagar_mcore.models.presets import preset
    from gagar_mcore.sft.data import SftData
    from gagar_mcore.trainer.rank import start_rank

    cuda = setting["device"] == "cuda"
    layout: dict[str, Any] = {"tp": 1, "ep": 1} | sizes(setting["layout"])
    trainer = TrainerSection(
        **layout,
        device=setting["device"],
        precision="bf16" if cuda else "fp32",
        threads=int(os.environ["OMP_NUM_THREADS"]),
        tokens_per_microbatch=16384 if cuda else 2048,
        freeze_router=False,
    )
    start_rank(trainer)

    from gagar_mcore.models.backends import best_backend, local_backend
    from gagar_mcore.sft.finetune import train_step
    from gagar_mcore.trainer.parts import plan_step
    from gagar_mcore.trainer.setup import build_policy
    from gagar_mcore.trainer.shards import load_tensors

    model = preset(setting["preset"])
    backend = local_backend() if setting["local"] else best_backend(trainer.cp)
    policy = build_policy(model, trainer, backend=backend)
    load_tensors(policy.chunks, model, random_tensors(model, 0))
    drawn = sequences(setting["lengths"], model.vocab_size)
    bounds = np.cumsum([0, *map(len, drawn)], dtype=np.int64)
    weights = np.ones(bounds[-1], np.float32)
    weights[bounds[:-1]] = 0
    data = SftData(np.concatenate(drawn), weights, bounds, np.array([0, len(drawn)]))
    packing = plan_step(data.bounds(0), trainer, model).packing.metrics()
    flops = float(training_flops(model, lengths(setting["lengths"])).sum())

    def finish(seconds: float) -> dict[str, float]:
        figures = {name: packing[name] for name in ("padding_share", "flop_imbalance")}
        return figures | (_gpu_figures(flops / seconds) if cuda else {})

    def step() -> None:
        train_step(policy, data, trainer, 0, LR)

    return step, finish


def transformers_step(setting: dict[str, Any]) -> tuple[Step, Callable[[float], dict[str, float]]]:
    import torch

    model = _hf_model(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    batches = padded_batches(sequences(setting["lengths"], model.config.vocab_size), 2048)

    def step() -> None:
        optimizer.zero_grad()
        for ids, mask in batches:
            (_negative_log_likelihood(model, ids, mask) / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    positions = sum(ids.numel() for ids, _ in batches)
    return step, lambda _: {"padding_share": 1 - float(sum(mask.sum() for _, mask in batches)) / positions}


def deepspeed_step(setting: dict[str, Any]) -> tuple[Step, Callable[[float], dict[str, float]]]:
    """ZeRO-2 over the ranks, each with its part of the sequences."""
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed("gloo")
    model = _hf_model(setting)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batches = padded_batches(sequences(setting["lengths"], model.config.vocab_size)[rank::ranks], 2048)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": len(batches),
        "zero_optimization": {"stage": 2},
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": [0.9, 0.95], "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step() -> None:
        for ids, mask in batches:
            engine.backward(_negative_log_likelihood(engine, ids, mask))
            engine.step()

    return step, lambda _: {}


def padded_batches(drawn: list[np.ndarray], budget: int) -> list[tuple[Any, Any]]:
    """Sequences in order of arrival, as many as fit `budget` positions when all are padded to the longest: ids and mask."""
    import torch

    groups: list[list[np.ndarray]] = [[]]
    for tokens in drawn:
        longest = max(len(tokens), *(len(other) for other in groups[-1]), 0) if groups[-1] else len(tokens)
        if groups[-1] and longest * (len(groups[-1]) + 1) > budget:
            groups.append([])
        groups[-1].append(tokens)
    batches = []
    for group in groups:
        width = max(map(len, group))
        ids = torch.zeros(len(group), width, dtype=torch.int64)
        mask = torch.zeros(len(group), width, dtype=torch.int64)
        for row, tokens in enumerate(group):
            ids[row, : len(tokens)] = torch.as_tensor(tokens, dtype=torch.int64)
            mask[row, : len(tokens)] = 1
        batches.append((ids, mask))
    return batches


def costs(step: Step, device: str) -> list[dict[str, Any]]:
    """The three operations that take most of a step, by their own time."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiler:
        step()
    own = {e.key: e.self_device_time_total if device == "cuda" else e.self_cpu_time_total for e in profiler.key_averages()}
    total = sum(own.values())
    largest = sorted(own.items(), key=lambda item: -item[1])[:3]
    return [{"name": name, "share": spent / total} for name, spent in largest]


def _hf_model(setting: dict[str, Any]) -> Any:
    import torch
    from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

    from gagar_mcore.models.huggingface import to_hf
    from gagar_mcore.models.presets import preset

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    return MiMoV2FlashForCausalLM(MiMoV2FlashConfig(**to_hf(preset(setting["preset"])))).train()


def _negative_log_likelihood(model: Any, ids: Any, mask: Any) -> Any:
    """Mean over the tokens that follow another."""
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    targets = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def _gpu_figures(flops_per_second: float) -> dict[str, float]:
    import torch

    name = torch.cuda.get_device_name()
    peak = next((flops for kind, flops in PEAK_FLOPS.items() if kind in name), None)
    figures = {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    return figures | ({"mfu": flops_per_second / peak} if peak else {})


if __name__ == "__main__":
    main()
