"""Where an outside agent works: the sandbox of its task, its own where it runs apart, and its socket to the policy."""

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.agent.proxy.endpoint import Endpoint
from gagar_mcore.agent.proxy.http import UnixServer
from gagar_mcore.agent.proxy.outside import SOCKET, SOCKET_FOLDER, OutsideAgent
from gagar_mcore.agent.proxy.recorder import Recorder
from gagar_mcore.agent.proxy.workspace import Workspace
from gagar_mcore.tasks.room import open_room
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Limits, Sandbox, SandboxPool, SandboxSpec

ADAPTERS = "/adapters"  # in the sandbox of an agent that runs apart
ADAPTERS_FOLDER = Path(__file__).parent / "adapters"
HOME = "/work"


@dataclass(frozen=True, slots=True)
class Rooms:
    """`agent` and `task` are the same sandbox, unless the agent runs apart. `secret` is the key of this session's socket."""

    agent: Sandbox
    task: Sandbox
    secret: str


@asynccontextmanager
async def open_rooms(
    pool: SandboxPool, agent: OutsideAgent, task: Task, limits: Limits, recorder: Recorder
) -> AsyncIterator[Rooms]:
    """Raises SandboxLost, SandboxUnavailable."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gagar-proxy-")))
        for name in ("socket", "home"):
            (folder / name).mkdir()
        of_agent = {SOCKET_FOLDER: folder / "socket", **agent.mounts}
        of_task = {} if agent.apart else of_agent
        secret = secrets.token_urlsafe(32)

        worked_on = await open_room(pool, task, limits, of_task)
        stack.push_async_callback(worked_on.close)
        workspace = Workspace(worked_on, task.workdir, agent.command_timeout_s) if agent.apart else None
        server = UnixServer(Endpoint(recorder, secret, workspace), agent.bounds.request_bytes, agent.bounds.connections)
        await server.start(folder / "socket" / SOCKET)
        stack.push_async_callback(server.close)
        if not agent.apart:
            yield Rooms(worked_on, worked_on, secret)
            return
        of_agent[ADAPTERS] = ADAPTERS_FOLDER
        own = await pool.acquire(SandboxSpec(folder / "home", HOME, of_agent, limits))
        stack.push_async_callback(own.close)
        yield Rooms(own, worked_on, secret)
