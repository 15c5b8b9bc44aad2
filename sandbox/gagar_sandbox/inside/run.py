"""Running one command under its deadline, and leaving nothing of it behind."""

from __future__ import annotations

import os
import select
import time

from .capture import Capture
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections would double the time to start
    from collections.abc import Callable

    from .capture import Tell

TICK_S = 0.05
NAMED = 200  # bytes of a command's name in an error
SIGINT, SIGKILL, SIGPIPE, SIGXFSZ = 2, 9, 13, 25


def run(
    argv: list[bytes],
    env: dict[bytes, bytes],
    stdin: bytes,
    timeout_s: float,
    output_limit: int,
    watch: Watch,
    cancelled: Callable[[], bool],
    tell: Tell | None,
) -> list[bytes]:
    """Run `argv` and kill all processes but this one. `cancelled` is asked whenever the host has sent something; `tell` is given
    the name of a stream and what came on it. Returns the reply's fields: outcome, exit code, whether output was cut ("0" or
    "1"), stdout, stderr."""
    deadline = time.monotonic() + timeout_s
    with Capture(output_limit, b"stdout", tell) as stdout, Capture(output_limit, b"stderr", tell) as stderr:
        try:
            child = _spawn(argv, env, stdin, stdout.sink, stderr.sink)
        except OSError as error:
            missing = b"127" if isinstance(error, FileNotFoundError) else b"126"
            return [b"exited", missing, b"0", b"", b"%s: %s\n" % (argv[0][:NAMED], os.strerror(error.errno or 0).encode())]
        outcome, note, status = _wait(child, deadline, (stdout, stderr), watch, cancelled)
        code = os.waitstatus_to_exitcode(_kill_all(child, status))
        while stdout.pull() or stderr.pull():
            pass
    truncated = b"1" if stdout.truncated or stderr.truncated else b"0"
    return [outcome, b"%d" % (128 - code if code < 0 else code), truncated, stdout.text(), stderr.text() + note]


def _spawn(argv: list[bytes], env: dict[bytes, bytes], stdin: bytes, stdout: int, stderr: int) -> int:
    """Start the command and close this end of its output."""
    source = os.memfd_create("stdin") if stdin else os.open("/dev/null", os.O_RDONLY)
    try:
        if stdin:
            with open(source, "wb", closefd=False) as file:
                file.write(stdin)
            os.lseek(source, 0, os.SEEK_SET)
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in enumerate((source, stdout, stderr))]
        os.putenv(b"PATH", env.get(b"PATH", b""))  # where posix_spawnp looks
        # PID 1 of Python ignores these signals; a command expects their defaults.
        return os.posix_spawnp(
            argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=(SIGINT, SIGPIPE, SIGXFSZ)
        )
    finally:
        for descriptor in (source, stdout, stderr):
            os.close(descriptor)


def _wait(
    child: int, deadline: float, outputs: tuple[Capture, Capture], watch: Watch, cancelled: Callable[[], bool]
) -> tuple[bytes, bytes, int | None]:
    """Until the child ends or has to. Returns the outcome, a note for stderr and the child's status if it was reaped."""
    ended = os.pidfd_open(child)
    next_look = time.monotonic() + TICK_S
    poller = select.poll()
    sources = {output.source: output for output in outputs}
    for descriptor in (0, ended, *sources):
        poller.register(descriptor, select.POLLIN)
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                return b"timed_out", b"", None
            if now >= next_look:
                next_look = now + TICK_S
                if (verdict := watch.verdict()) is not None:
                    return *verdict, None
            for descriptor, _ in poller.poll(1000 * min(deadline - now, TICK_S)):
                if descriptor == 0 and cancelled():
                    return b"timed_out", b"", None
                if descriptor in sources and not sources[descriptor].pull() and sources[descriptor].ended:
                    poller.unregister(descriptor)
            status = _reap(child)
            if status is not None:
                return b"exited", b"", status
    finally:
        os.close(ended)


def _reap(child: int) -> int | None:
    """Collect every process that has ended; the status of `child` if it was among them."""
    found = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = ended[1]
    except ChildProcessError:
        pass
    return found


def _kill_all(child: int, status: int | None) -> int:
    """Kill and reap all processes of the namespace but this one; the status of `child`."""
    try:
        os.kill(-1, SIGKILL)
        while True:
            pid, ended = os.waitpid(-1, 0)
            if pid == child:
                status = ended
    except (ProcessLookupError, ChildProcessError):
        pass  # none is left
    if status is None:
        raise RuntimeError(f"process {child} ended without a status")
    return status
