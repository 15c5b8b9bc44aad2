"""An API server, its scheduler and its kubelets, in one process: what a pool needs of a cluster, and nothing else.

True to the protocol: resource versions, lists, watches with bookmarks and 410, Status objects for errors, label selectors, strict
validation of pods, deletion with events, custom resources, exec whose commands really run. Faults are asked for by tests.
"""

import asyncio
import contextlib
import datetime
import json
import re
import signal
import sys
import time
import uuid
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes_validate
from aiohttp import web
from containers import Containers
from remote_exec import serve_exec

Json = dict[str, Any]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SCHEMA = "1.37"
BOOKMARK_S = 1.0


@dataclass
class Fault:
    """The next `times` requests of a `verb` (create, delete, get, list, watch, exec) get this answer."""

    verb: str
    status: int
    reason: str
    times: int = 1
    retry_after: int | None = None


@dataclass(frozen=True)
class Event:
    """One change, as watches are told it; `at` is when it was."""

    version: int
    at: float
    plural: str
    labels: dict[str, str]
    line: bytes


@dataclass
class FakeCluster:
    """`quota`: pods that the namespace may have. `skew_s`: how far this server's clock is ahead. `watch_delay_s`: how late events
    are told. `window`: events that are kept for watches. `image_files`: texts that images have, by their place.
    `fates`: of pods by the image of `main`, as the status of a container that waits for ever, or "Unschedulable".
    `cut_execs`: after so many bytes of each coming exec the connection breaks."""

    folder: Path
    image_init: Path
    start_s: float = 0.0
    validate: bool = False
    skew_s: float = 0.0
    watch_delay_s: float = 0.0
    quota: int | None = None
    window: int = 100_000
    image_files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.containers: dict[str, Containers] = {}
        self.requests: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.fates: dict[str, Json | str] = {}
        self.cut_execs: list[int] = []
        self.most_pods = self.most_opening = self._opening = 0
        self.on_change: Callable[[str, str, Json], None] = lambda change, plural, thing: None
        self._version = 1
        self._events: list[Event] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._execs: list[Process] = []
        self._runner: web.AppRunner | None = None

    # What a test does to the cluster.

    def pods(self) -> dict[str, Json]:
        return {name: thing for (plural, name), thing in self.objects.items() if plural == "pods"}

    async def set_status(self, name: str, **changes: Any) -> None:
        pod = self.objects["pods", name]
        pod["status"] = {**pod["status"], **changes}
        await self._emit("MODIFIED", "pods", pod)

    async def evict(self, name: str) -> None:
        self.containers[name].kill()
        await self.set_status(name, phase="Failed", reason="Evicted", message="The node was low on resource: memory.")

    async def run_out_of_memory(self, name: str) -> None:
        """The kernel kills the whole of `main`."""
        self.containers[name].kill("main")
        ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        await self.set_status(name, phase="Failed", containerStatuses=[{"name": "main", "state": ended}])

    async def lose_node(self, name: str) -> None:
        """The node controller deletes the pods of a node that has fallen silent."""
        self.containers[name].kill()
        lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "node not-ready"}
        self.objects["pods", name]["metadata"]["deletionTimestamp"] = self._now()
        await self.set_status(name, reason="NodeLost", conditions=[lost])

    def forget_events(self) -> None:
        """As where etcd was compacted: a watch from an older version gets 410."""
        self._events.clear()

    async def cut_watches(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        await self._listen(self._port)

    # The server itself.

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        await self._listen(port)
        try:
            yield f"http://127.0.0.1:{self._port}"
        finally:
            for task in self._tasks:
                task.cancel()
            assert self._runner is not None
            await self._runner.cleanup()
            for containers in self.containers.values():
                containers.remove()
            for process in self._execs:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)  # it stops itself where what it brought into a container was stopped
            await asyncio.gather(*(process.wait() for process in self._execs))

    async def _listen(self, port: int) -> None:
        app = web.Application(middlewares=[self._middleware], client_max_size=1 << 26)
        pods, custom = "/api/v1/namespaces/{namespace}/{plural:pods}", "/apis/{group}/{version}/namespaces/{namespace}/{plural}"
        for path in (pods, custom):
            app.router.add_get(path, self._list)
            app.router.add_post(path, self._create)
            app.router.add_get(path + "/{name}", self._get)
            app.router.add_delete(path + "/{name}", self._delete)
        app.router.add_get(pods + "/{name}/exec", self._exec)
        self._runner = web.AppRunner(app, shutdown_timeout=0.001)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        verb = _verb(request)
        self.requests[verb] += 1
        for fault in self.faults:
            if fault.verb == verb and fault.times > 0:
                fault.times -= 1
                headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
                return _status(fault.status, fault.reason, "injected", headers)
        response: web.StreamResponse = await handler(request)
        return response

    async def _create(self, request: web.Request) -> web.Response:
        plural, thing = request.match_info["plural"], await request.json()
        metadata = thing["metadata"]
        if plural == "pods" and self.validate:
            try:
                kubernetes_validate.validate(thing, SCHEMA, strict=True)
            except kubernetes_validate.ValidationError as error:
                return _status(422, "Invalid", f"pod is invalid: {error}")
        if not NAME.fullmatch(metadata["name"]):
            return _status(422, "Invalid", f"metadata.name {metadata['name']!r} is invalid")
        if (plural, metadata["name"]) in self.objects:
            return _status(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
        if plural == "pods" and self.quota is not None and len(self.pods()) >= self.quota:
            return _status(403, "Forbidden", f"pods is forbidden: exceeded quota: sandboxes, limited: pods={self.quota}")
        await self.add(plural, thing)
        return web.json_response(thing, status=201)

    async def add(self, plural: str, thing: Json) -> None:
        metadata = thing["metadata"]
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._now()}
        self.objects[plural, metadata["name"]] = thing
        if plural == "pods":
            thing["status"] = {"phase": "Pending"}
            self.most_pods = max(self.most_pods, len(self.pods()))
            self.containers[metadata["name"]] = Containers(
                thing, self.folder / metadata["name"], self.image_init, self.image_files
            )
            self._background(self._live(metadata["name"]))
        await self._emit("ADDED", plural, thing)

    async def remove(self, plural: str, name: str) -> Json:
        thing = self.objects.pop((plural, name))
        thing["metadata"]["deletionTimestamp"] = self._now()
        if plural == "pods":
            containers = self.containers.pop(name)
            self._background(asyncio.to_thread(containers.remove))
        await self._emit("DELETED", plural, thing)
        return thing

    async def _delete(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        if (plural, name) not in self.objects:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        return web.json_response(await self.remove(plural, name))

    async def _get(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        if (plural, name) not in self.objects:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        return web.json_response(self.objects[plural, name])

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, selected = request.match_info["plural"], _selector(request.query.get("labelSelector", ""))
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request, plural, selected)
        every = sorted((name, thing) for (kind, name), thing in self.objects.items() if kind == plural)
        found = [thing for _, thing in every if selected(thing["metadata"].get("labels") or {})]
        first = int(request.query.get("continue", 0))
        end = first + int(request.query.get("limit", len(found)))
        metadata = {"resourceVersion": str(self._version), "continue": str(end) if end < len(found) else ""}
        return web.json_response({"kind": "List", "metadata": metadata, "items": found[first:end]})

    async def _watch(self, request: web.Request, plural: str, selected: Callable[[dict[str, str]], bool]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        seen = int(request.query["resourceVersion"])
        oldest = self._events[0].version if self._events else self._version + 1
        if seen < oldest - 1:
            expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version {seen}"}
            await response.write(_line("ERROR", expired))
            return response
        end = time.monotonic() + float(request.query.get("timeoutSeconds", 300))
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                seen = await self._tell(response, plural, selected, seen)
        return response

    async def _tell(
        self, response: web.StreamResponse, plural: str, selected: Callable[[dict[str, str]], bool], seen: int
    ) -> int:
        """What came after the version `seen`, or for want of that a bookmark. Returns the version told last."""
        for event in self._events_after(seen):
            await asyncio.sleep(max(0.0, event.at + self.watch_delay_s - time.monotonic()))
            if event.plural == plural and selected(event.labels):
                await response.write(event.line)
            seen = event.version
        try:
            async with asyncio.timeout(BOOKMARK_S), self._changed:
                await self._changed.wait_for(lambda: self._version > seen)
        except TimeoutError:
            await response.write(_line("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}}))
        return seen

    def _events_after(self, seen: int) -> list["Event"]:
        """Versions have no gaps."""
        return self._events[max(0, seen + 1 - self._events[0].version) :] if self._events else []

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        name, container = request.match_info["name"], request.query["container"]
        if ("pods", name) not in self.objects:
            return _status(404, "NotFound", f'pods "{name}" not found')
        if self.objects["pods", name]["status"]["phase"] != "Running":
            return _status(500, "InternalError", f'container not found ("{container}")')
        cut = self.cut_execs.pop(0) if self.cut_execs else None
        self._opening += 1
        self.most_opening = max(self.most_opening, self._opening)
        try:
            process = await self.containers[name].exec(container, request.query.getall("command"))
        finally:
            self._opening -= 1
        self._execs = [*(other for other in self._execs if other.returncode is None), process]
        return await serve_exec(request, process, cut)

    async def _live(self, name: str) -> None:
        """What scheduler and kubelet make of a pod."""
        await asyncio.sleep(self.start_s)
        if ("pods", name) not in self.objects:
            return
        containers = self.objects["pods", name]["spec"]["containers"]
        fate = self.fates.get(containers[0]["image"])
        if fate == "Unschedulable":
            scheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available",
            }
            await self.set_status(name, conditions=[scheduled])
        elif fate:
            await self.set_status(name, containerStatuses=[{"name": "main", "state": {"waiting": fate}}])
        else:
            running = {"running": {"startedAt": self._now()}}
            states = [{"name": container["name"], "ready": True, "state": running} for container in containers]
            conditions = [
                {"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ]
            await self.set_status(name, phase="Running", conditions=conditions, containerStatuses=states)

    async def _emit(self, event: str, plural: str, thing: Json) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        line = _line(event, thing)
        labels = dict(thing["metadata"].get("labels") or {})
        self._events.append(Event(self._version, time.monotonic(), plural, labels, line))
        del self._events[: -self.window]
        async with self._changed:
            self._changed.notify_all()
        self.on_change(event, plural, thing)

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        self._background(work)

    def _background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> str:
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.skew_s)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _verb(request: web.Request) -> str:
    if request.path.endswith("/exec"):
        return "exec"
    if request.method != "GET":
        return {"POST": "create", "DELETE": "delete"}[request.method]
    if "watch" in request.query:
        return "watch"
    return "get" if "name" in request.match_info else "list"


def _selector(text: str) -> Callable[[dict[str, str]], bool]:
    wanted = dict(part.split("=", 1) for part in text.split(",") if part)
    return lambda labels: all(labels.get(name) == value for name, value in wanted.items())


def _line(event: str, thing: Json) -> bytes:
    return json.dumps({"type": event, "object": thing}).encode() + b"\n"


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)


async def main(folder: Path, image_init: Path) -> None:
    """Serve until standard input ends, and print the address first and the counts of requests last."""
    cluster = FakeCluster(folder, image_init)
    async with cluster.serve() as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({**cluster.requests, "most_pods": cluster.most_pods, "left": len(cluster.pods())}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
