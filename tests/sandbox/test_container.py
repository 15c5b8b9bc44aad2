"""What an engine of containers is asked. There is none here: a script in its place writes down its words and answers what a test
wants; it runs nothing."""

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gagar_sandbox import Limits, SandboxLost, SandboxSpec, SandboxUnavailable, owner
from gagar_sandbox.container import ContainerPool, ContainerSettings, command
from gagar_sandbox.container.sandbox import ContainerSandbox

SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo $@ >> "$here/asked"
case "$1" in
    run) echo container-1;;
    exec) case "$*" in *"kill -9 -1"*) . "$here/ending";; *) . "$here/behaviour";; esac;;
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
    (folder / "ending").write_text("echo oom_kill 0")
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
    words = command.create(settings, spec, "debian:12", "me", "a-name")
    joined = " ".join(words)
    for needed in (
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--memory 64m --memory-swap 64m",
        "--pids-limit 10",
        "--ulimit fsize=4194304",
        "--name a-name --label gagar.run=a-run --label gagar.owner=me",
        "--user 59999:59999",
        f"--mount type=bind,src={tmp_path.resolve()},dst=/tests,readonly",
        "--runtime runsc --read-only",
    ):
        assert needed in joined
    assert words[-6:] == ["--workdir", "/work", "--entrypoint", "sleep", "debian:12", "infinity"]
    assert "--privileged" not in joined and "--read-only" not in command.create(ContainerSettings("r"), spec, "i", "me", "n")
    assert command.execute(settings, "c", "/work", ["true"])[1:4] == ["exec", "--user", "1000"]
    assert command.kill_all(ContainerSettings("r"), "c")[1:5] == ["exec", "--user", "0:0", "c"]
    with pytest.raises(ValueError, match="comma"):
        command.create(settings, SandboxSpec(None, "/work", {"/a,b": tmp_path}), "i", "me", "n")


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
        await sandbox.snapshot()

    use(engine, SandboxSpec(base), body)
    assert asked(engine) == ["ps", "run", "cp", "exec", "exec", "commit", "rm", "run", "commit", "rm", "rmi", "rmi"]
    assert " image-1 infinity" in (engine.parent / "asked").read_text()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and util-linux")
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_what_ends_the_commands_leaves_who_holds_the_container(shell: str):
    """As the kernel has it: users, no capabilities, a namespace of processes."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    script = r"""
names() { for each in /proc/[0-9]*/cmdline; do IFS= read -r -d "" first < $each; echo "$first"; done; }
sleeping() { names 2>/dev/null | grep -c ^sleep; }
as_commands() { setpriv --bounding-set -all --inh-caps -all --no-new-privs "$@"; }
setpriv --reuid $1 --clear-groups sleep 1000 & holder=$!
as_commands sh -c "sleep 1000 & sleep 1000 & exec sleep 1000" &
until [ $(sleeping) = 4 ]; do :; done
as_commands $2 -c "$3" > /dev/null && echo done
until [ $(sleeping) = 1 ]; do :; done
kill -9 $holder && echo held"""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script, "bash"]
    words += [command.HOLDER.partition(":")[0], shell, command.KILL_ALL]
    told = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=False).stdout
    assert told.split() == ["done", "held"]


def test_outcomes(engine: Path, base: Path):
    async def body(sandbox: ContainerSandbox) -> None:
        for behaviour, ending, state, outcome in [
            ("exec sleep 100", "echo oom_kill 0", "", "timed_out"),
            ("exit 137", "echo oom_kill 1", "", "out_of_memory"),
            ("exit 137", "echo oom_kill 1", "", "exited"),
            ("exit 126", "echo oom_kill 1", "", "exited"),
            ("exit 0", "exit 127", "true false", "exited"),  # it has ruined the shell
            ("exit 137", "exit 1", "false true", "out_of_memory"),
        ]:
            for name, text in (("behaviour", behaviour), ("ending", ending), ("state", state)):
                (engine.parent / name).write_text(text)
            timeout_s = 0.3 if outcome == "timed_out" else 30
            assert (await sandbox.exec(["x"], timeout_s=timeout_s)).outcome == outcome, behaviour
        assert asked(engine).count("restart") == 1
        (engine.parent / "behaviour").write_text("exit 1")  # as of a command, and of an engine that has lost the container
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
        assert "sh -c kill -9 -1" in (engine.parent / "asked").read_text().splitlines()[-1]

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
    with pytest.raises(ValueError, match="concurrency is 0"):
        ContainerPool(ContainerSettings("r", engine=str(engine)), 0)
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
    assert_removed_what_was_made(engine)


def assert_removed_what_was_made(engine: Path) -> None:
    lines = [line.split() for line in (engine.parent / "asked").read_text().splitlines()]
    made = [words[words.index("--name") + 1] for words in lines if words[0] == "run"]
    assert made and made == [words[-1] for words in lines if words[0] == "rm"]


def test_a_container_that_did_not_start_is_removed_too_and_its_place_is_free(engine: Path):
    engine.write_text(engine.read_text().replace("run) echo container-1", 'run) [ -e "$here/well" ]'))

    async def main() -> None:
        pool = ContainerPool(ContainerSettings("r", engine=str(engine), image="i"), 1)
        with pytest.raises(SandboxLost, match="run failed"):
            await pool.acquire(SandboxSpec(None))
        (engine.parent / "well").touch()
        await pool.acquire(SandboxSpec(None))
        await pool.close()

    asyncio.run(main())
    assert_removed_what_was_made(engine)


def test_an_engine_that_was_away_is_asked_again(engine: Path):
    script = engine.read_text()
    engine.write_text(script.replace("ps)", "ps) exit 1;;\n    unheard)"))

    async def main() -> None:
        pool = ContainerPool(ContainerSettings("r", engine=str(engine), image="i"), 1)
        with pytest.raises(SandboxLost, match="ps failed"):
            await pool.acquire(SandboxSpec(None))
        engine.write_text(script)
        await pool.acquire(SandboxSpec(None))
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("closed_after", [0, 0.1, 0.7])
def test_a_pool_closed_while_a_container_starts_or_is_made_anew_leaves_none(engine: Path, closed_after: float):
    engine.write_text(engine.read_text().replace("run) echo", "run) sleep 0.3; echo"))

    async def main() -> None:
        pool = ContainerPool(ContainerSettings("r", engine=str(engine), image="i"), 1)

        async def use() -> None:
            await (await pool.acquire(SandboxSpec(None))).reset()

        using = [asyncio.create_task(use()) for _ in range(2)]
        await asyncio.sleep(closed_after)
        await asyncio.gather(pool.close(), pool.close())
        for done in await asyncio.gather(*using, return_exceptions=True):
            assert done is None or isinstance(done, SandboxLost)

    asyncio.run(main())
    if "run" in asked(engine):
        lines = [line.split() for line in (engine.parent / "asked").read_text().splitlines()]
        made = {words[words.index("--name") + 1] for words in lines if words[0] == "run"}
        assert made <= {words[-1] for words in lines if words[0] == "rm"}


def test_a_read_only_root_keeps_no_snapshot(engine: Path, base: Path):
    async def main() -> None:
        pool = ContainerPool(ContainerSettings("r", engine=str(engine), image="i", read_only_root=True), 1)
        sandbox = await pool.acquire(SandboxSpec(base))
        with pytest.raises(NotImplementedError, match="read_only_root=false"):
            await sandbox.snapshot()
        await pool.close()

    asyncio.run(main())
