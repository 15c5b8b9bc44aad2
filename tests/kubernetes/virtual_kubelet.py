"""Kubelets without machines, for a real API server: a node that pods are bound to, their status, and exec that really runs."""

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from containers import Containers
from remote_exec import serve_exec

NODE = "virtual"
MERGE = {"Content-Type": "application/merge-patch+json"}
CAPACITY = {"cpu": "100000", "memory": "400Ti", "pods": "100000", "ephemeral-storage": "400Ti"}
PARALLEL = 32
Json = dict[str, Any]


class VirtualKubelet:
    """One node, `name`, with the pods that the scheduler binds to it."""

    def __init__(self, url: str, token: str, folder: Path, image_init: Path, openssl: str) -> None:
        self._url = url
        self._token = token
        self._folder = folder
        self._image_init = image_init
        self._openssl = openssl
        self._containers: dict[str, Containers] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = asyncio.Semaphore(PARALLEL)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        runner = web.AppRunner(web.Application(client_max_size=1 << 26), shutdown_timeout=0.1)
        runner.app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._certificate())
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=False)) as self._session:
            await self._register(port)
            watching = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                for task in (watching, *self._tasks):
                    task.cancel()
                for containers in self._containers.values():
                    containers.remove()
                await runner.cleanup()

    async def _register(self, port: int) -> None:
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Virtual", "message": ""}],
        }
        async with self._session.post(f"{self._url}/api/v1/nodes", json={"metadata": {"name": NODE}}) as answer:
            answer.raise_for_status()
        path, tainted = f"{self._url}/api/v1/nodes/{NODE}", {"spec": {"taints": None}}
        for place, change in ((f"{path}/status", {"status": status}), (path, tainted)):
            async with self._session.patch(place, json=change, headers=MERGE) as answer:
                answer.raise_for_status()

    async def _watch(self) -> None:
        """From the start again after every interruption: what is as it should be is left as it is."""
        query = {"watch": "1", "fieldSelector": f"spec.nodeName={NODE}"}
        endless = aiohttp.ClientTimeout(total=None)
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._session.get(f"{self._url}/api/v1/pods", params=query, timeout=endless) as answer:
                    async for line in answer.content:
                        event = json.loads(line)
                        task = asyncio.create_task(self._see(event["type"], event["object"]))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(0.2)

    async def _see(self, change: str, pod: Json) -> None:
        name = pod["metadata"]["name"]
        if change == "DELETED":
            if containers := self._containers.pop(name, None):
                await asyncio.to_thread(containers.remove)
        elif change in ("ADDED", "MODIFIED") and pod["status"].get("phase") == "Pending":
            self._containers.setdefault(name, Containers(pod, self._folder / name, self._image_init, {}))
            async with self._limit:
                await self._run(pod)

    async def _run(self, pod: Json) -> None:
        states = [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
            for c in pod["spec"]["containers"]
        ]
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": states}
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.patch(self._url + path, json={"status": status}, headers=MERGE):
                pass

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        containers = self._containers[request.match_info["pod"]]
        process = await containers.exec(request.match_info["container"], request.query.getall("command"))
        return await serve_exec(request, process, None)

    def _certificate(self) -> ssl.SSLContext:
        self._folder.mkdir(parents=True, exist_ok=True)
        key, certificate = self._folder / "kubelet.key", self._folder / "kubelet.pem"
        words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=kubelet -keyout {key} -out {certificate}".split()
        subprocess.run([self._openssl, *words], check=True, capture_output=True, timeout=60)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context
