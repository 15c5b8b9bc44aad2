"""The few requests that a pool makes, through the asynchronous client of Kubernetes' API."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import aiohttp
from kubernetes_asyncio import client
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration
from kubernetes_asyncio.stream import WsApiClient

from gagar_sandbox.kubernetes.backoff import persist
from gagar_sandbox.kubernetes.errors import ApiError

REQUEST_S = 30.0
HANDSHAKES = 32  # of execs at once: each makes a kubelet start a process
WRITERS = 16  # writes at once: servers share their attention among all who ask
CLOSED = 499  # no server answers with that
PAGE = 500  # objects of a list at once
WATCH_S = 240
SILENCE_S = 90.0  # servers send a bookmark about every minute
PROTOCOLS = "v5.channel.k8s.io, v4.channel.k8s.io"

Json = dict[str, Any]
WRITES = ("create", "delete")


class _Client(WsApiClient):
    """Requests and sockets over one session."""

    async def request(self, method: str, url: str, **options: Any) -> Any:
        kind = WsApiClient if url.endswith("/exec") else ApiClient
        return await kind.request(self, method, url, **options)


class Api:
    """Requests of one namespace. `counts` has how many there were of each kind, and `retries` by their errors' status."""

    def __init__(self, configuration: Configuration, namespace: str, retry_s: float) -> None:
        configuration.connection_pool_maxsize = 0  # what bounds connections is the pool
        self._client = _Client(configuration, heartbeat=SILENCE_S / 3)
        self._namespace = namespace
        self._retry_s = retry_s
        self._pods = client.CoreV1Api(self._client)
        self._custom = client.CustomObjectsApi(self._client)
        self._writing = asyncio.Semaphore(WRITERS)
        self._opening = asyncio.Semaphore(HANDSHAKES)
        self._allowed: set[str] = set()
        self._creating_stopped = asyncio.Event()
        self._closed = False
        self.counts: Counter[str] = Counter()
        self.retries: Counter[int] = Counter()

    @property
    def writes(self) -> int:
        """Requests that changed what the server stores."""
        return sum(self.counts[kind] for kind in WRITES)

    async def close(self) -> None:
        """Whatever is asked from now on fails for good. Waits for what is under way, which the client cannot bear to lose."""
        self._closed = True
        for slots, count in ((self._opening, HANDSHAKES), (self._writing, WRITERS)):
            for _ in range(count):
                await slots.acquire()
            for _ in range(count):
                slots.release()
        await self._client.close()

    def stop_creating(self) -> None:
        """From now on no creation is tried again."""
        self._creating_stopped.set()

    async def create(self, body: Json) -> None:
        """A pod, or an object of a custom resource. One that is there already is taken for ours, whose answer was lost: names are
        drawn at random. Raises ApiError."""
        if body["kind"] == "Pod":
            send = partial(self._pods.create_namespaced_pod, self._namespace, body)
        else:
            send = partial(self._custom.create_namespaced_custom_object, *self._resource(body["kind"], body["apiVersion"]), body)
        try:
            await self._persist("create", send, self._creating_stopped)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def delete(self, kind: str, version: str, name: str) -> None:
        """At once, and nothing where it has gone already. Raises ApiError."""
        now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        if kind == "Pod":
            send = partial(self._pods.delete_namespaced_pod, name, self._namespace, body=now)
        else:
            send = partial(self._custom.delete_namespaced_custom_object, *self._resource(kind, version), name, body=now)
        try:
            await self._persist("delete", send)
        except ApiError as error:
            if error.status != 404:
                raise

    async def find(self, kind: str, version: str, selector: str) -> tuple[list[Json], str]:
        """The objects, and the resource version from which a watch goes on. Raises ApiError."""
        if kind == "Pod":
            send = partial(self._pods.list_namespaced_pod, self._namespace)
        else:
            send = partial(self._custom.list_namespaced_custom_object, *self._resource(kind, version))
        found: list[Json] = []
        page: dict[str, str] = {}
        while True:
            told = await self._persist("list", partial(send, label_selector=selector, limit=PAGE, **page))
            found += told["items"]
            rest = told["metadata"].get("continue")
            if not rest:
                return found, told["metadata"]["resourceVersion"]
            page = {"_continue": rest}

    def _resource(self, kind: str, version: str) -> tuple[str, str, str, str]:
        group, _, name = version.partition("/")
        return group, name, self._namespace, f"{kind.lower()}s"

    async def watch(self, selector: str, version: str) -> AsyncIterator[Json]:
        """Events of pods, bookmarks too, until the server ends them. Raises ApiError, of status 0 where it falls silent."""
        self.counts["watch"] += 1
        options = {"watch": True, "allow_watch_bookmarks": True, "timeout_seconds": WATCH_S, "resource_version": version}
        patience = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=SILENCE_S)
        try:
            answer = await self._pods.list_namespaced_pod(
                self._namespace, label_selector=selector, _preload_content=False, _request_timeout=patience, **options
            )
            async with answer:
                await _check(answer)
                async for line in answer.content:
                    yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _away(error) from error

    @contextlib.asynccontextmanager
    async def exec(self, pod: str, container: str, command: list[str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """The socket of a command in a container, as in the protocols v4 and v5 of remote commands. Raises ApiError where there
        is none."""
        async with self._opening:
            self._check_open()
            socket = await self._open_exec(pod, container, command)
        self._allowed.add("exec")
        try:
            yield socket
        finally:
            await socket.close()

    async def _open_exec(self, pod: str, container: str, command: list[str]) -> aiohttp.ClientWebSocketResponse:
        self.counts["exec"] += 1
        try:
            opening = await self._pods.connect_get_namespaced_pod_exec(
                pod,
                self._namespace,
                container=container,
                command=command,
                stdin=True,
                stdout=True,
                stderr=True,
                _preload_content=False,
                _headers={"sec-websocket-protocol": PROTOCOLS},
            )
            async with asyncio.timeout(REQUEST_S):
                socket: aiohttp.ClientWebSocketResponse = await opening
                return socket
        except aiohttp.WSServerHandshakeError as error:
            message = f"{error.message} (exec into {pod})"
            raise ApiError(error.status, "exec", message, allowed="exec" in self._allowed) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _away(error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise ApiError(CLOSED, "Closed", "the pool is closed")

    async def _persist(
        self, kind: str, send: Callable[..., Awaitable[aiohttp.ClientResponse]], stopped: asyncio.Event | None = None
    ) -> Json:
        async def once() -> Json:
            try:
                # What waits to be tried again is in nobody's way: deletions are what a full quota waits for.
                async with self._writing if kind in WRITES else contextlib.nullcontext():
                    self._check_open()
                    self.counts[kind] += 1
                    answer = await send(_preload_content=False, _request_timeout=REQUEST_S)
                    async with answer:
                        await _check(answer, kind in self._allowed)
                        result: Json = json.loads(await answer.read())
                        self._allowed.add(kind)
                        return result
            except ApiException as error:
                raise ApiError(error.status or 0, str(error.reason), str(error.body)) from error
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise _away(error) from error

        return await persist(once, self._retry_s, lambda error: self.retries.update([error.status]), stopped)


async def _check(answer: aiohttp.ClientResponse, allowed: bool = False) -> None:
    if answer.status < 400:
        return
    text = await answer.text()
    try:
        told: Mapping[str, Any] = json.loads(text)
    except ValueError:
        told = {}
    after = answer.headers.get("Retry-After", "")
    wait_s = float(after) if after.isdigit() else None
    raise ApiError(answer.status, told.get("reason", answer.reason or ""), told.get("message", text[:500]), wait_s, allowed)


def _away(error: Exception) -> ApiError:
    return ApiError(0, "unreachable", f"the API server did not answer: {type(error).__name__} {error}".strip())
