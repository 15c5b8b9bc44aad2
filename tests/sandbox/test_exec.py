import asyncio
import math

import pytest

from gagar_sandbox import ExecResult, SandboxLost
from gagar_sandbox.local import LocalSandbox


def test_runs_in_the_workdir_and_leaves_the_base_alone(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(
            ["sh", "-c", "pwd; cat hello.txt; echo changed > hello.txt; rm -r folder; exit 3"], timeout_s=30
        )
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, b"/app\nhello")
        assert await sandbox.read("hello.txt") == b"changed\n"

    (base / "folder").mkdir()
    use(body)
    assert (base / "hello.txt").read_text() == "hello"
    assert (base / "folder").is_dir()


def test_python_and_git_are_there(use):
    async def body(sandbox: LocalSandbox) -> None:
        script = (
            "python3 -c 'import json, ssl, sqlite3, multiprocessing as m; m.Lock(); print(1)' && git init -q . && git status -s"
        )
        result = await sandbox.exec(["sh", "-c", script], timeout_s=60)
        assert (result.exit_code, result.stdout) == (0, b"1\n?? hello.txt\n"), result.stderr

    use(body)


def test_exit_code_of_a_signal(use):
    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"], timeout_s=30)).exit_code == 128 + 15
        # Python ignores SIGPIPE; a command must not inherit that.
        assert (await sandbox.exec(["bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}"], timeout_s=30)).exit_code == 128 + 13

    use(body)


def test_commands_that_cannot_run(use):
    async def body(sandbox: LocalSandbox) -> None:
        missing = await sandbox.exec(["no-such-command"], timeout_s=30)
        assert (missing.exit_code, missing.stderr) == (127, b"no-such-command: No such file or directory\n")
        assert (await sandbox.exec(["./hello.txt"], timeout_s=30)).exit_code == 126
        assert (await sandbox.exec(["true"], timeout_s=30, env={"PATH": "/nowhere"})).exit_code == 127
        for _ in range(600):  # more than PID 1 may have open
            await sandbox.exec(["no-such-command"], timeout_s=30)
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0
        for command in ([], [""], ["a\0b"], ["echo", "\ud800"]):
            with pytest.raises(ValueError, match="cannot run"):
                await sandbox.exec(command, timeout_s=30)
        with pytest.raises(ValueError, match="has no name"):
            await sandbox.exec(["true"], timeout_s=30, env={"": "x"})
        with pytest.raises(ValueError, match="timeout_s is nan"):
            await sandbox.exec(["true"], timeout_s=math.nan)
        with pytest.raises(ValueError, match="output_limit is -1"):
            await sandbox.exec(["true"], timeout_s=30, output_limit=-1)
        with pytest.raises(ValueError, match="no path"):
            await sandbox.read("\ud800")
        long = await sandbox.exec(["x" * 400_000], timeout_s=30, output_limit=100)
        assert (long.exit_code, long.stderr[:4], len(long.stderr) < 300) == (126, b"xxxx", True)

    use(body)


def test_environment_and_stdin(use, monkeypatch):
    monkeypatch.setenv("GAGAR_SECRET", "leaked")

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["env"], timeout_s=30, env={"COLOUR": "red=blue", "HOME": "/app"})
        variables = result.stdout.decode().splitlines()
        assert {"COLOUR=red=blue", "HOME=/app", "LANG=C.UTF-8"} < set(variables)
        assert "leaked" not in result.stdout.decode()
        data = bytes(range(256)) * 4000
        assert (await sandbox.exec(["cat"], timeout_s=30, stdin=data, output_limit=len(data))).stdout == data
        assert (await sandbox.exec(["cat"], timeout_s=30)).stdout == b""

    use(body)


def test_a_command_that_closes_its_stdin_or_output(use):
    async def body(sandbox: LocalSandbox) -> None:
        closing = "exec <&-; exec >&- 2>&-; exit 5"
        assert (await sandbox.exec(["sh", "-c", closing], timeout_s=30, stdin=b"x" * (1 << 20))).exit_code == 5

    use(body)


def test_output_keeps_head_and_tail(use):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "seq 100000; seq 3 >&2"], timeout_s=30, output_limit=20)
        assert result.output_truncated
        assert result.stdout == b"1\n2\n3\n4\n5\n\n[... 588875 bytes cut ...]\n99\n100000\n"
        assert result.stderr == b"1\n2\n3\n"
        exact = await sandbox.exec(["printf", "0123456789"], timeout_s=30, output_limit=10)
        assert (exact.stdout, exact.output_truncated) == (b"0123456789", False)

    use(body)


async def stopped_once_heard(sandbox: LocalSandbox, script: str, output_limit: int = 1000) -> ExecResult:
    """What becomes of a script that never ends, at a deadline that was late enough for it to say something."""
    for timeout_s in (0.3, 3, 30):
        result = await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s, output_limit=output_limit)
        if result.stdout:
            break
    return result


def test_a_flood_of_output_costs_no_memory_and_meets_the_deadline(use):
    async def body(sandbox: LocalSandbox) -> None:
        result = await stopped_once_heard(sandbox, "yes & yes >&2", output_limit=100)
        assert (result.outcome, result.exit_code, result.output_truncated) == ("timed_out", 137, True)
        assert len(result.stdout) < 200 and len(result.stderr) < 200

    use(body)


def test_timeout_keeps_what_was_said(use):
    async def body(sandbox: LocalSandbox) -> None:
        result = await stopped_once_heard(sandbox, "echo before; while :; do :; done")
        assert (result.outcome, result.exit_code, result.stdout) == ("timed_out", 137, b"before\n")

    use(body)


def test_nothing_survives_a_command(use):
    async def body(sandbox: LocalSandbox) -> None:
        daemon = "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' &) ; nohup sleep 1000 & echo done"
        assert (await sandbox.exec(["sh", "-c", daemon], timeout_s=30)).stdout == b"done\n"
        left = await sandbox.exec(["sh", "-c", "exec ls -d /proc/[0-9]*"], timeout_s=30)
        assert len(left.stdout.split()) == 2  # PID 1 and ls

    use(body)


def test_cancelling_kills_what_runs_and_the_sandbox_goes_on(use):
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.exec(["sh", "-c", "sleep 1000; echo no > late"], timeout_s=2000), 0.5)
        left = await sandbox.exec(["sh", "-c", "exec ls -d /proc/[0-9]* *"], timeout_s=30)
        assert len(left.stdout.split()) == 3  # PID 1, ls and hello.txt

    use(body)


def test_calls_at_once_take_turns(use):
    async def body(sandbox: LocalSandbox) -> None:
        calls = [sandbox.exec(["sh", "-c", f"echo {n} >> log; wc -l < log"], timeout_s=30) for n in range(8)]
        results = await asyncio.gather(*calls)
        assert sorted(int(result.stdout) for result in results) == list(range(1, 9))

    use(body)


def test_a_closed_sandbox_is_lost(use):
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"], timeout_s=30)

    use(body)
