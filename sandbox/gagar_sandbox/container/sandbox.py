"""One container as a sandbox."""

import asyncio
import errno
import time
from collections.abc import Callable, Mapping, Sequence

from gagar_sandbox.asked import check_command
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
        self._snapshot = ""
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises SandboxLost."""
        image = self._snapshot or self._image
        self._container = await ask(line.create(self._settings, self._spec, image, self._owner), START_S)
        if self._spec.base and not self._snapshot:
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
        out, err = Kept(output_limit), Kept(output_limit)

        def hear(kept: Kept, stream: str) -> Callable[[bytes], None]:
            def heard(data: bytes) -> None:
                kept.add(data)
                if on_output:
                    on_output("stdout" if stream == "stdout" else "stderr", data)

            return heard

        words = self._inside(command, {**ENVIRONMENT, **(env or {})})
        async with self._turn:
            started = time.monotonic()
            try:
                code = await run(words, stdin, hear(out, "stdout"), hear(err, "stderr"), timeout_s)
            finally:
                await asyncio.shield(self._kill_all())
            outcome = await self._outcome(code)
        seconds = time.monotonic() - started
        return ExecResult(outcome, 137 if code is None else code, out.text(), err.text(), out.truncated or err.truncated, seconds)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """See Sandbox.read."""
        data = bytearray()
        words = self._inside(["sh", "-c", READ, "sh", path, str(max_bytes + 1)])
        async with self._turn:
            code = await run(words, b"", data.extend, _unheard, ENGINE_S)
        if code == 2:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        if code != 0 or len(data) > max_bytes:
            raise OSError(errno.EFBIG if len(data) > max_bytes else errno.EINVAL, "Not a plain file, or too large", path)
        return bytes(data)

    async def write(self, path: str, data: bytes) -> None:
        """See Sandbox.write."""
        words = self._inside(["sh", "-c", WRITE, "sh", path])
        async with self._turn:
            said = bytearray()
            if await run(words, data, _unheard, said.extend, ENGINE_S) != 0:
                raise OSError(errno.EIO, said.decode(errors="replace").strip() or "cannot be written", path)

    async def snapshot(self) -> None:
        """See Sandbox.snapshot. What lies in /tmp and in read-only roots' volumes is not part of it."""
        async with self._turn:
            before, self._snapshot = self._snapshot, await ask(line.commit(self._settings, self._container), START_S)
            if before:
                await ask(line.remove_image(self._settings, before), ENGINE_S)

    async def reset(self) -> None:
        """See Sandbox.reset: a new container."""
        async with self._turn:
            await ask(line.remove(self._settings, [self._container]), ENGINE_S)
            await self.start()

    async def close(self) -> None:
        """See Sandbox.close. Cancelled, it goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._container:
                await ask(line.remove(self._settings, [self._container]), ENGINE_S)
            if self._snapshot:
                await ask(line.remove_image(self._settings, self._snapshot), ENGINE_S)
        finally:
            self._on_close(self)

    async def _kill_all(self) -> None:
        await run(line.kill_all(self._settings, self._container), b"", _unheard, _unheard, ENGINE_S)

    async def _outcome(self, code: int | None) -> Outcome:
        """What the engine says of the container decides, for its own exit codes could be the command's too."""
        if code in (0, 1):
            return "exited"
        running, out_of_memory = (await ask(line.state(self._settings, self._container), ENGINE_S)).split()
        if code is None:
            return "timed_out"
        if code == 137 and out_of_memory == "true":
            return "out_of_memory"
        if running != "true":
            raise SandboxLost("the container has died")
        return "exited"

    def _inside(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        if self._closing:
            raise SandboxLost("the sandbox is closed")
        return line.execute(self._settings, self._container, self._spec.workdir, command, env)


def _unheard(data: bytes) -> None:
    """Whoever asked does not need it."""
