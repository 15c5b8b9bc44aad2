"""The embedded engine: a small transformers model in a process of its own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.devices import Device, device_environment
from gagar_mcore.engine.framing import unpack_array
from gagar_mcore.engine.process import ChildProcess
from gagar_mcore.engine.protocol import GenerateRequest, Generation, RoutedTokens
from gagar_mcore.engine.requests import check_requests
from gagar_mcore.records.types import WeightSpan


@dataclass(frozen=True, slots=True)
class Usage:
    """Since the start of the engine: tokens generated, and seconds in which the engine was at work on them."""

    tokens: int = 0
    seconds: float = 0.0


class EmbeddedEngine:
    """An Engine. Calls that overlap share one batch; with `deterministic` set each call runs alone, from an empty cache.

    Every method raises EngineError where the process is gone or misses `section.deadline_s`, which ends it.
    """

    def __init__(self, child: ChildProcess, section: EngineSection, max_context: int, vocab_size: int) -> None:
        self._child = child
        self._section = section
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.usage = Usage()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        check_requests(requests, self.vocab_size, self.max_context)
        plain = [asdict(request) | {"input_ids": list(request.input_ids)} for request in requests]
        answer = await self._call("generate", requests=plain)
        self.usage = Usage(**answer["usage"])
        return [_generation(data) for data in answer["generations"]]

    async def end_session(self, session_id: str) -> None:
        """What the session has at work is answered with finish reason `abort`."""
        await self._call("end_session", session_id=session_id)

    async def load_weights(self, directory: Path, version: int) -> None:
        """Calls that run are finished with the old weights; later ones wait for the new, and every cache is dropped.
        Refuses, and keeps the old weights, where a manifest, a tensor's name or a tensor's shape is wrong."""
        await self._call("load_weights", directory=str(directory.absolute()), version=version)

    async def release_memory(self) -> None:
        await self._call("release_memory")

    async def close(self) -> None:
        await self._child.close()

    async def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return await self._child.call(operation, self._section.deadline_s, **arguments)


async def start_embedded(
    model: Path,
    version: int,
    section: EngineSection,
    log: Path,
    *,
    max_context: int | None = None,
    deterministic: bool = False,
    record_experts: bool = False,
) -> EmbeddedEngine:
    """Start the engine on the model in `model` (config.json, *.safetensors), whose tokens carry `version`.

    log: the process's standard error is appended to it; max_context: None takes the model's `max_position_embeddings`;
    record_experts: answers say which experts their tokens passed.
    Raises EngineError where the model cannot be loaded or the engine is not ready within `section.start_timeout_s`.
    """
    child = await ChildProcess.spawn("gagar_mcore.engine.worker", log, worker_environment(section.threads, section.device))
    try:
        limits = await child.call(
            "start",
            section.start_timeout_s,
            model=str(model.absolute()),
            version=version,
            rows=section.max_batch,
            threads=section.threads,
            max_context=max_context,
            deterministic=deterministic,
            device=section.device,
            record_experts=record_experts,
        )
    except BaseException:
        await child.close()
        raise
    return EmbeddedEngine(child, section, **limits)


def worker_environment(threads: int, device: Device = "cpu") -> dict[str, str]:
    """What the engine's process needs in its environment before it loads torch."""
    return {
        **device_environment(device),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",  # always that many threads: another number sums in another order
        "MKL_DYNAMIC": "FALSE",
        # Threads that wait must sleep: where sandboxes share the cores, spinning made a step up to 30 times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Freed activations are reused; glibc would unmap them and have the kernel clear new pages at every step.
        "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(2**30),
    }


def _generation(data: dict[str, Any]) -> Generation:
    spans = [WeightSpan(**span) for span in data["weight_spans"]]
    return Generation(data["token_ids"], data["logprobs"], spans, data["finish_reason"], _routed(data["routed"]))


def _routed(data: dict[str, Any] | None) -> RoutedTokens | None:
    return None if data is None else RoutedTokens(data["start"], unpack_array(data["experts"]).astype(np.int16))
