"""The engine on SGLang's server: token ids in and out, over its native interface."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.attach import attach_server
from gagar_mcore.engine.http import ConnectionLost, HttpClient
from gagar_mcore.engine.partial import EngineLost, Partial
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.engine.requests import check_requests
from gagar_mcore.engine.server import Server, start_server
from gagar_mcore.engine.sglang_flags import Serving
from gagar_mcore.engine.sglang_wire import generate_body, read_generation, read_meta, read_part
from gagar_mcore.engine.update import Updater
from gagar_mcore.records.store import MANIFEST, RecordError
from gagar_mcore.weights.transport import Update
from gagar_mcore.weights.verify import verify_weights

WATCH_S = 5.0  # between two questions after the server's health
ABORT_S = 5.0


class SGLangEngine:
    """An Engine. A request that is cancelled or late is aborted at the server. A server that ends, or says nothing for
    `section.server.health_deadline_s`, is ended, and every call raises EngineError from then on."""

    def __init__(self, server: Server, serving: Serving, section: EngineSection) -> None:
        self._server = server
        self._serving = serving
        self._section = section
        self._client = HttpClient(server.endpoint)
        self._updater = Updater(section, server.receiver)
        self._read: dict[str, int] = {}  # tokens of each session whose experts are known
        self._versions, self._held = [serving.version], 0  # of weights that it was told to load; which of them it holds, at least
        self._released = False
        self._control = asyncio.Lock()  # weights and memory change one after the other
        self._orders = 0
        self._watching = [asyncio.create_task(self._watch_process()), asyncio.create_task(self._watch_health())]
        self._examination: asyncio.Task[None] | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        return self._client.failure is None

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """Raises EngineLost, with what had been said, where a connection or the server is lost."""
        check_requests(requests, self._serving.model.vocab_size, self._serving.max_context)
        await self._resume_memory()
        partial = [Partial() for _ in requests]
        try:
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(self._generate(*asked)) for asked in zip(requests, partial, strict=True)]
        except ExceptionGroup as failures:
            error = failures.exceptions[0]
            if isinstance(error, ConnectionLost) or not self.alive:
                raise EngineLost(
                    str(error), [one.generation(asked) for one, asked in zip(partial, requests, strict=True)]
                ) from failures
            raise error from failures
        return [answer.result() for answer in answers]

    async def end_session(self, session_id: str) -> None:
        """The server drops what it remembers of a session when it needs the room."""
        self._read.pop(session_id, None)

    async def load_weights(self, directory: Path, version: int) -> None:
        """`section.server.running` says what requests at work go through. A server that does not hold `version` afterwards is
        ended."""
        await asyncio.to_thread(_check_published, directory)
        await self._resume_memory()
        async with self._control:
            self._versions.append(version)
            with self._or_end(f"new weights {directory}"):
                await self._exchange(directory, version)
            self._held = len(self._versions) - 1
        self._read.clear()

    async def release_memory(self) -> None:
        """A server that does not give it back is ended."""
        if self._section.device != "cuda":
            return
        async with self._control:
            if self._released:
                return
            self._released = True  # from here on no health is asked for: SGLang ends where it has anything to do
            with self._or_end("its memory"):
                if self._examination is not None:
                    await asyncio.shield(self._examination)
                await self._order(f"/flush_cache?timeout={self._section.deadline_s:g}", {}, 2 * self._section.deadline_s)
                await self._order("/release_memory_occupation", {})

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._client.close()
        await self._updater.close()
        await asyncio.gather(*self._aborts, *([self._examination] if self._examination else []))
        await self._server.close()

    async def _generate(self, request: GenerateRequest, partial: Partial) -> Generation:
        name, held = f"{request.session_id}/{uuid.uuid4().hex}", self._held
        known = self._read.get(request.session_id, 0) if self._serving.record_experts else None
        try:
            meta = await self._ask(request, name, known, partial)
        except (EngineError, asyncio.CancelledError) as error:
            self._abort(name)
            if isinstance(error, ConnectionLost):
                await asyncio.wait([self._server.ended], timeout=error.again_s)  # if it has died, the system says so now
                await self._examine()
            raise
        generation = read_generation(meta, request, known, self._serving.model)
        for span in generation.weight_spans:
            if span.version not in self._versions[held:]:
                self._end(f"{self._server.name} answers with weights {span.version}, which this run has not loaded there")
                raise EngineError(self._client.failure)
        if (routed := generation.routed) is not None:
            self._read[request.session_id] = routed.start + len(routed.experts)
        return generation

    async def _ask(self, request: GenerateRequest, name: str, known: int | None, partial: Partial) -> dict[str, Any]:
        """`meta_info` of the whole answer. One that may be long comes in parts, so that a lost one can go on elsewhere."""
        every = self._section.server.parts_of
        if not 0 < every < request.max_new_tokens:
            body = generate_body(request, name, known, None)
            return read_meta(await self._client.call("/generate", self._section.deadline_s, body))
        parts: list[dict[str, Any]] = []

        def heard(part: dict[str, Any]) -> None:
            parts.append(read_meta(part))
            partial.add(*read_part(parts[-1]))

        await self._client.stream("/generate", self._section.deadline_s, generate_body(request, name, known, every), heard)
        if not parts or parts[-1].get("finish_reason") is None:
            raise ConnectionLost(f"{self._client.endpoint.url}/generate: the answer breaks off")
        scored = [token for part in parts for token in part.get("output_token_logprobs") or ()]
        return {**parts[-1], "output_token_logprobs": scored}

    async def _exchange(self, directory: Path, version: int) -> None:
        running = self._section.server.running
        if running != "finish":
            await self._order("/pause_generation", {"mode": running})
        await self._updater.bring(self._update, Update(directory.absolute(), version, flush=running != "in_place"))
        if running != "finish":
            await self._order("/continue_generation", {})

    async def _resume_memory(self) -> None:
        if not self._released:
            return
        async with self._control:
            if self._released:
                with self._or_end("its memory"):
                    await self._order("/resume_memory_occupation", {})
                self._released = False

    async def _update(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        self._orders += 1
        return await self._client.call(path, self._section.start_timeout_s, body, admin=body is not None)

    async def _order(self, path: str, body: dict[str, Any], deadline_s: float | None = None) -> None:
        self._orders += 1
        await self._client.call(path, deadline_s or self._section.deadline_s, body, admin=True)

    def _abort(self, name: str) -> None:
        """Have the server forget a request, without waiting for it."""
        task = asyncio.create_task(self._send_abort(name))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, name: str) -> None:
        """One that fails costs the server a request that nobody waits for."""
        with contextlib.suppress(EngineError):
            await self._client.call("/abort_request", ABORT_S, {"rid": name}, admin=True)

    async def _watch_process(self) -> None:
        await asyncio.shield(self._server.ended)
        self._client.fail(self._server.obituary())

    async def _watch_health(self) -> None:
        while self.alive:
            await asyncio.sleep(WATCH_S)
            await self._examine()

    async def _examine(self) -> None:
        """One examination serves all that ask for one meanwhile."""
        if self._examination is None or self._examination.done():
            self._examination = asyncio.create_task(self._end_if_silent())
        await asyncio.shield(self._examination)

    async def _end_if_silent(self) -> None:
        """End a server that gives no sign of health in time, unless it was told to do something else meanwhile."""
        if self._released:
            return
        orders = self._orders
        try:
            await self._client.wait_healthy(self._section.server.health_deadline_s)
        except EngineError as error:
            if not self._released and not self._control.locked() and orders == self._orders:
                self._end(f"{self._server.name}: {error}")

    @contextlib.contextmanager
    def _or_end(self, of: str) -> Iterator[None]:
        """End a server that may be left with half of what was ordered."""
        try:
            yield
        except BaseException as error:
            self._end(f"{of}: {error}")
            raise

    def _end(self, reason: str) -> None:
        self._client.fail(reason)
        self._server.kill()


async def start_sglang(serving: Serving, section: EngineSection, log: Path, number: int = 0) -> SGLangEngine:
    """The engine on a server of its own, the `number`th of this machine, with the weights of `serving`. Raises EngineError where
    it is not healthy within `section.start_timeout_s`."""
    return SGLangEngine(await start_server(serving, section, log, number), serving, section)


async def attach_sglang(file: Path, serving: Serving, section: EngineSection) -> SGLangEngine:
    """The engine on the server that `file` tells of, brought to the weights of `serving`. Raises EngineError."""
    server = await attach_server(file, section.start_timeout_s)
    engine = SGLangEngine(server, serving, section)
    try:
        await engine.load_weights(serving.weights, serving.version)
    except BaseException:
        await engine.close()
        raise
    return engine


def _check_published(directory: Path) -> None:
    """A directory that a run has published is whole; SGLang looks for another one among names on a hub."""
    if not (directory / "config.json").is_file():
        raise EngineError(f"{directory}: holds no config.json; name a directory in Hugging Face format")
    if (directory / MANIFEST).exists():
        try:
            verify_weights(directory)
        except (RecordError, OSError) as error:
            raise EngineError(str(error)) from error
