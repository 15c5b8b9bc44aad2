"""What an engine of containers is asked. There is none here: a script in its place writes down its words and answers what a test
wants; it runs nothing."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gagar_sandbox import Limits, SandboxLost, SandboxSpec, SandboxUnavailable, owner
from gagar_sandbox.container import ContainerPool, ContainerSettings, command
from gagar_sandbox.container.sandbox import ContainerSandbox

SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/asked"
case "$1" in
    run) echo container-1;;
    exec) case "$*" in *"kill -9 -1") ;; *) . "$here/behaviour";; esac;;
    inspect) cat "$here/state";;
    ps) [ ! -e "$here/listed" ] || cat "$here/listed";;
    commit) echo image-1;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(SCRIPT)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "state").write_text("true false")
    (folder / "behaviour").write_text("")
    return program


def asked(engine: Path) -> list[str]:
    return [line.split(" ")[0] for line in (engine.parent / "asked").read_text().splitlines()]


def use(engine: Path, spec: SandboxSpec, body: Callable[[ContainerSandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = ContainerPool(ContainerSettings("a-run", engine=str(engine), image="debian:12"), 2)
        try:
            await body(await pool.acquire(spec))
        finally:
            await pool.close()

    asyncio.run(main())


def test_what_a_container_may_not(tmp_path: Path):
    settings = ContainerSettings("a-run", user="1000", runtime="runsc", read_only_root=True)
    spec = SandboxSpec(None, "/work", {"/tests": tmp_path}, Limits(64, 8, 4, 16))
    words = command.create(settings, spec, "debian:12", "me")
    joined = " ".join(words)
    for needed in (
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--memory 64m --memory-swap 64m",
        "--pids-limit 10",
        "--ulimit fsize=4194304",
        "--label gagar.run=a-run --label gagar.owner=me",
        f"--mount type=bind,src={tmp_path.resolve()},dst=/tests,readonly",
        "--user 1000 --runtime runsc --read-only",
    ):
        assert needed in joined
    assert words[-6:] == ["--workdir", "/work", "--entrypoint", "sleep", "debian:12", "infinity"]
    assert "--privileged" not in joined and "--read-only" not in command.create(ContainerSettings("r"), spec, "i", "me")
    with pytest.raises(ValueError, match="comma"):
        command.create(settings, SandboxSpec(None, "/work", {"/a,b": tmp_path}), "i", "me")


def test_a_command_and_what_follows_it(engine: Path, base: Path):
    (engine.parent / "behaviour").write_text("cat; echo err >&2; exit 3")

    async def body(sandbox: ContainerSandbox) -> None:
        heard: list[bytes] = []
        result = await sandbox.exec(
            ["x"], timeout_s=30, stdin=b"in", env={"A": "b"}, on_output=lambda _, data: heard.append(data)
        )
        assert (result.outcome, result.exit_code, result.stdout, result.stderr) == ("exited", 3, b"in", b"err\n")
        assert sorted(heard) == [b"err\n", b"in"]
        await sandbox.snapshot()
        await sandbox.reset()

    use(engine, SandboxSpec(base), body)
    assert asked(engine) == ["ps", "run", "cp", "exec", "exec", "inspect", "commit", "rm", "run", "rm", "rmi"]
    assert " image-1 infinity" in (engine.parent / "asked").read_text()


def test_outcomes(engine: Path, base: Path):
    async def body(sandbox: ContainerSandbox) -> None:
        for behaviour, state, outcome in [
            ("exec sleep 100", "true false", "timed_out"),
            ("exit 137", "true true", "out_of_memory"),
            ("exit 137", "true false", "exited"),
            ("exit 126", "true false", "exited"),
        ]:
            (engine.parent / "behaviour").write_text(behaviour)
            (engine.parent / "state").write_text(state)
            timeout_s = 0.3 if outcome == "timed_out" else 30
            assert (await sandbox.exec(["x"], timeout_s=timeout_s)).outcome == outcome
        (engine.parent / "behaviour").write_text("exit 125")
        (engine.parent / "state").write_text("false false")
        with pytest.raises(SandboxLost, match="died"):
            await sandbox.exec(["x"], timeout_s=30)

    use(engine, SandboxSpec(base), body)


def test_a_cancelled_command_is_killed_inside(engine: Path, base: Path):
    (engine.parent / "behaviour").write_text("exec sleep 100")

    async def body(sandbox: ContainerSandbox) -> None:
        running = asyncio.create_task(sandbox.exec(["x"], timeout_s=100))
        while "exec" not in asked(engine):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (engine.parent / "asked").read_text().splitlines()[-1].endswith("sh -c kill -9 -1")

    use(engine, SandboxSpec(base), body)


def test_files(engine: Path, base: Path):
    async def body(sandbox: ContainerSandbox) -> None:
        (engine.parent / "behaviour").write_text("printf 0123456789")
        assert await sandbox.read("a") == b"0123456789"
        with pytest.raises(OSError, match="too large"):
            await sandbox.read("a", max_bytes=9)
        (engine.parent / "behaviour").write_text("exit 2")
        with pytest.raises(FileNotFoundError):
            await sandbox.read("a")
        (engine.parent / "behaviour").write_text("echo full >&2; exit 1")
        with pytest.raises(OSError, match="full"):
            await sandbox.write("a", b"x")

    use(engine, SandboxSpec(base), body)


def test_only_what_dead_controllers_of_this_run_left_is_removed(engine: Path, base: Path):
    dead = owner.prefix().replace(f"-{owner.os.getpid()}-", "-99999999-")
    (engine.parent / "listed").write_text(f"one {dead}\ntwo {owner.prefix()}\nthree gagar-sandboxes-1-99999999-5-\n")

    async def body(sandbox: ContainerSandbox) -> None:
        removed = [line for line in (engine.parent / "asked").read_text().splitlines() if line.startswith("rm ")]
        assert removed == ["rm --force --volumes one"]

    use(engine, SandboxSpec(base), body)
    assert "--filter label=gagar.run=a-run" in (engine.parent / "asked").read_text()


def test_no_engine_and_no_image(engine: Path, base: Path):
    with pytest.raises(SandboxUnavailable, match="no docker-is-not-here"):
        ContainerPool(ContainerSettings("r", engine="docker-is-not-here"), 1)

    async def main() -> None:
        with pytest.raises(ValueError, match="image"):
            await ContainerPool(ContainerSettings("r", engine=str(engine)), 1).acquire(SandboxSpec(base))

    asyncio.run(main())


def test_an_acquire_that_is_cancelled_removes_what_comes_of_it(engine: Path):
    script = engine.read_text().replace("run) echo", "run) sleep 0.5; echo")
    engine.write_text(script)

    async def main() -> None:
        pool = ContainerPool(ContainerSettings("r", engine=str(engine), image="i"), 1)
        starting = asyncio.create_task(pool.acquire(SandboxSpec(None)))
        while not (engine.parent / "asked").exists() or "run" not in asked(engine):
            await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await pool.close()

    asyncio.run(main())
    assert (engine.parent / "asked").read_text().splitlines()[-1] == "rm --force --volumes container-1"
