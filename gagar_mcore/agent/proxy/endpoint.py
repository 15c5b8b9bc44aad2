"""The paths of the proxy: what may be asked, with which key, and what is answered."""

import hmac
import json
from collections.abc import Mapping
from typing import Any

from gagar_mcore.agent.proxy.anthropic_api import Anthropic, Counting
from gagar_mcore.agent.proxy.api import DONE, Api
from gagar_mcore.agent.proxy.conversation import Refused
from gagar_mcore.agent.proxy.heard import Heard
from gagar_mcore.agent.proxy.http import HttpRequest, HttpResponse
from gagar_mcore.agent.proxy.openai_api import OpenAi, models
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.agent.proxy.workspace import Workspace
from gagar_sandbox.types import SandboxLost

OPENAI, ANTHROPIC, COUNTING = OpenAi(), Anthropic(), Counting()
COUNT = ("POST", "/v1/messages/count_tokens")
PATHS: Mapping[tuple[str, str], Api] = {
    ("GET", "/v1/models"): OPENAI,
    ("POST", "/v1/chat/completions"): OPENAI,
    ("POST", "/v1/messages"): ANTHROPIC,
    COUNT: ANTHROPIC,
}
COMMANDS = ("POST", "/workspace/exec")
REQUEST_BYTES = 4096  # that a request counts beside its body, so that a session has an end of empty ones as well


class Endpoint:
    """Answers requests that carry `key` from the session of `recorder`, and knows of no other. Where there is a `workspace`, it
    takes commands for it."""

    def __init__(self, recorder: Recorder, key: str, workspace: Workspace | None = None) -> None:
        self._recorder = recorder
        self._key = key.encode()
        self._heard = Heard()
        self._workspace = workspace
        self._paths = {*PATHS, COMMANDS} if workspace else set(PATHS)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        api = PATHS.get((request.method, request.path), ANTHROPIC if request.path.startswith("/v1/messages") else OPENAI)
        try:
            return await self._answer(request, api)
        except Refused as refused:
            return _json(api.error(refused), refused.status)

    async def _answer(self, request: HttpRequest, api: Api) -> HttpResponse:
        self._recorder.read(REQUEST_BYTES + request.size)
        path = (request.method, request.path)
        if path not in self._paths:
            raise Refused(404, "not_found_error", f"{request.method} {request.path}: there is no such path here")
        if not hmac.compare_digest(_key_of(request), self._key):
            raise Refused(401, "authentication_error", "the key is not that of this session")
        if request.body is None:
            raise Refused(413, "invalid_request_error", f"the body is larger than {self._recorder.bounds.request_bytes} bytes")
        if request.method == "GET":
            return _json(models())
        if path == COMMANDS and self._workspace is not None:
            return _json(await self._run(self._workspace, request.body))
        if path == COUNT:
            return _json({"input_tokens": await self._recorder.count(self._heard.read(COUNTING, request.body).asked)})
        asked = self._heard.read(api, request.body)
        answered = await self._recorder.answer(asked.asked)
        if not asked.stream:
            return _json(api.write(answered))
        return HttpResponse(200, b"".join(_event(name, data) for name, data in api.events(answered)), "text/event-stream")

    async def _run(self, workspace: Workspace, body: bytes) -> dict[str, object]:
        try:
            return await workspace.run(body)
        except SandboxLost as error:
            raise self._recorder.fail("sandbox_lost", str(error)) from error


def _key_of(request: HttpRequest) -> bytes:
    given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
    return given.encode("latin-1")


def _json(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, json.dumps(value).encode())


def _event(name: str | None, data: Any) -> bytes:
    line = DONE if data == DONE else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode()
