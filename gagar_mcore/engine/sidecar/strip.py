"""Experts out of SGLang's answers, and into a store."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

from gagar_mcore.engine.sglang_wire import read_experts
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.records.expert_store import ExpertStore

NAME = "routed_experts"
EVENT = b"data: "


class Stripper:
    """Replaces the experts of an answer by a reference to where it has stored them, and all of the answer by an error where it
    cannot store them."""

    def __init__(self, model: ModelConfig, store: ExpertStore) -> None:
        self._model, self._store = model, store
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, body: bytes) -> bytes:
        """body: of a whole answer, JSON."""
        return await self._without(body) if NAME.encode() in body else body

    async def event(self, line: bytes) -> bytes:
        """line: of an answer that comes in parts, as server-sent events."""
        if not line.startswith(EVENT) or NAME.encode() not in line:
            return line
        return EVENT + await self._without(line.removeprefix(EVENT))

    async def _without(self, text: bytes) -> bytes:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._strip, text)

    def _strip(self, text: bytes) -> bytes:
        answer: dict[str, Any] = json.loads(text)
        meta = answer.get("meta_info", {})
        if isinstance(told := meta.get(NAME), str):
            try:
                rows = read_experts(told, self._model)
                meta[NAME] = asdict(self._store.append(rows)) if len(rows) else None
            except (OSError, ValueError) as error:
                answer = {"error": f"its experts are not stored: {error}"}
        return json.dumps(answer, separators=(",", ":")).encode()
