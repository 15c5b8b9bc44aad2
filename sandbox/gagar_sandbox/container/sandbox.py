"""One container as a sandbox."""

import asyncio
import errno
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from gagar_sandbox.asked import check_bounds, check_command, check_path
from gagar_sandbox.container import command as line
from gagar_sandbox.container.command import ContainerSettings
from gagar_sandbox.container.engine import ask, run
from gagar_sandbox.inside.capture import Kept
from gagar_sandbox.types import ExecResult, OnOutput, Outcome, SandboxLost, SandboxSpec

START_S = 600.0  # an image may have to be pulled
ENGINE_S = 60.0
READ = 'test -f "$1" || { test -e "$1" && exit 3; exit 2; }; exec head -c "$2" -- "$1"'
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && { test ! -e "$1" || test -f "$1"; } && exec cat > "$1"'
ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8"}


class ContainerSandbox:
    """Made by ContainerPool.acquire. Calls run one after the other. The image needs sh, head, cat and sleep."""

    def __init__(
        self,
        settings: ContainerSettings,
        spec: SandboxSpec,
        image: str,
        owner: str,
        on_close: Callable[["ContainerSandbox"], None],
    ) -> None:
        self._settings = settings
        self._spec = spec
        self._image = image
        self._owner = owner
        self._on_close = on_close
        self._container = ""
        self._snapshots: list[str] = []
        self._oom_kills = 0
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises SandboxLost."""
        image, self._container, self._oom_kills = [self._image, *self._snapshots][-1], f"gagar-{secrets.token_hex(8)}", 0
        await ask(line.create(self._settings, self._spec, image, self._owner, self._container), START_S)
        if self._spec.base and not self._snapshots:
            words = line.bring_in(self._settings, self._container, str(self._spec.base.resolve()), self._spec.workdir)
            await ask(words, START_S)

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        output_limit: int = 65536,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """See Sandbox.exec. Raises ValueError where the command is empty or holds a NUL."""
        check_command(command, [f"{name}={value}" for name, value in (env or {}).items()])
        check_bounds(timeout_s, output_limit)
        out, err = Kept(output_limit), Kept(output_limit)

        def hear(kept: Kept, stream: str) -> Callable[[bytes], None]:
            def heard(data: bytes) -> None:
                kept.add(data)
                if on_output:
                    on_output("stdout" if stream == "stdout" else "stderr", data)

            return heard

        async with self._turn:
            words = self._inside(command, {**ENVIRONMENT, **(env or {})})
            started = time.monotonic()
            try:
                code = await run(words, stdin, hear(out, "stdout"), hear(err, "stderr"), timeout_s)
            except BaseException:
                await asyncio.shield(self._end_all())
                raise
            seconds = time.monotonic() - started
            outcome: Outcome = "out_of_memory" if await self._end_all() else "timed_out" if code is None else "exited"
        return ExecResult(outcome, 137 if code is None else code, out.text(), err.text(), out.truncated or err.truncated, seconds)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """See Sandbox.read."""
        check_path(path)
        data = bytearray()
        async with self._turn:
            words = self._inside(["sh", "-c", READ, "sh", path, str(max_bytes + 1)])
            code = await run(words, b"", data.extend, _unheard, ENGINE_S)
        if code == 2:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        if code != 0 or len(data) > max_bytes:
            raise OSError(errno.EFBIG if len(data) > max_bytes else errno.EINVAL, "Not a plain file, or too large", path)
        return bytes(data)

    async def write(self, path: str, data: bytes) -> None:
        """See Sandbox.write."""
        check_path(path)
        said = bytearray()
        async with self._turn:
            words = self._inside(["sh", "-c", WRITE, "sh", path])
            if await run(words, data, _unheard, said.extend, ENGINE_S) != 0:
                raise OSError(errno.EIO, said.decode(errors="replace").strip() or "cannot be written", path)

    async def snapshot(self) -> None:
        """See Sandbox.snapshot. What lies in /tmp is not part of it. Raises NotImplementedError where the root is read-only."""
        if self._settings.read_only_root:
            raise NotImplementedError("snapshot: engines keep none of a volume; set sandbox.container.read_only_root=false")
        async with self._turn:
            self._check_open()
            self._snapshots.append(await ask(line.commit(self._settings, self._container), START_S))

    async def reset(self) -> None:
        """See Sandbox.reset: a new container."""
        async with self._turn:
            self._check_open()
            await self._remove()
            await self.start()

    async def close(self) -> None:
        """See Sandbox.close. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            first = self._container
            await self._remove()
            async with self._turn:
                if self._container != first:
                    await self._remove()  # made by a reset meanwhile
            while self._snapshots:  # each is made of the one before, and what runs of it keeps it
                await ask(line.remove_image(self._settings, self._snapshots.pop()), ENGINE_S)
        finally:
            self._on_close(self)

    async def _remove(self) -> None:
        await ask(line.remove(self._settings, [self._container]), ENGINE_S)

    async def _end_all(self) -> bool:
        """Leave no process of a command. Whether memory has run out. An engine's own exit codes could be the command's too, so
        that what it says of the container decides whether that is lost. Raises SandboxLost."""
        said = bytearray()
        if await run(line.kill_all(self._settings, self._container), b"", said.extend, _unheard, ENGINE_S) == 0:
            before, self._oom_kills = self._oom_kills, sum(map(int, re.findall(rb"^oom_kill ([0-9]+)$", said, re.M)))
            return self._oom_kills > before
        running, out_of_memory = (await ask(line.state(self._settings, self._container), ENGINE_S)).split()
        if running == "true":
            await ask(line.restart(self._settings, self._container), ENGINE_S)
        elif out_of_memory != "true":
            raise SandboxLost("the container has died")
        return out_of_memory == "true"

    def _check_open(self) -> None:
        if self._closing:
            raise SandboxLost("the sandbox is closed")

    def _inside(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        self._check_open()
        return line.execute(self._settings, self._container, self._spec.workdir, command, env)


def _unheard(data: bytes) -> None:
    """Whoever asked does not need it."""
