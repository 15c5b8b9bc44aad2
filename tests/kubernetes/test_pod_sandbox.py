"""Sandboxes in pods of the fake cluster: what every backend offers."""

import asyncio
import os
from dataclasses import replace

import pytest
from pooled import PODS

from gagar_sandbox import Limits, SandboxLost, SandboxSpec
from gagar_sandbox.kubernetes import live


def test_runs_in_the_workdir_and_leaves_the_base_alone(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        result = await sandbox.exec(["sh", "-c", "pwd; cat hello.txt; ./link; echo changed > hello.txt; exit 3"], timeout_s=30)
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, b"/app\nhelloran\n")
        assert await sandbox.read("hello.txt") == b"changed\n"
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await sandbox.exec(["true"], timeout_s=30)

    use(body)
    assert (base / "hello.txt").read_text() == "hello"


def test_every_name_and_kind_of_file_comes_as_it_is(use, base):
    odd = base / os.fsdecode(b"\xff \n'")
    odd.write_bytes(b"odd")
    (base / "empty").mkdir()
    (base / "deep-").touch(0o600)  # sorts before what is in `deep`
    (base / "to a folder").symlink_to("deep")
    (base / "nowhere").symlink_to("/does/not/exist")
    os.mkfifo(base / "pipe")

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        assert await sandbox.read(odd.name) == b"odd"
        seen = await sandbox.exec(["find", ".", "-mindepth", "1", "-printf", "%y%m %P %l|"], timeout_s=30)
        assert sorted(seen.stdout.split(b"|")[:-1]) == [
            b"d755 deep ",
            b"d755 empty ",
            b"f555 deep/run.sh ",
            b"f600 deep- ",
            b"f644 hello.txt ",
            b"f644 \xff \n' ",
            b"l777 link deep/run.sh",
            b"l777 nowhere /does/not/exist",
            b"l777 to a folder deep",
        ]

    use(body)


def test_environment_and_stdin(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        result = await sandbox.exec(["env"], timeout_s=30, env={"COLOUR": "red=blue", "EMPTY": ""})
        variables = result.stdout.decode().splitlines()
        assert {"COLOUR=red=blue", "EMPTY=", "HOME=/tmp", "LANG=C.UTF-8"} < set(variables)
        assert not any(line.startswith("KUBERNETES_") for line in variables)
        data = bytes(range(256)) * 4000
        assert (await sandbox.exec(["cat"], timeout_s=30, stdin=data, output_limit=len(data))).stdout == data
        assert (await sandbox.exec(["printf", "%s.", "", "a b", ""], timeout_s=30)).stdout == b".a b.."

    use(body)


def test_commands_that_cannot_run_and_signals(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        missing = await sandbox.exec(["no-such-command"], timeout_s=30)
        assert (missing.exit_code, missing.stderr) == (127, b"no-such-command: No such file or directory\n")
        assert (await sandbox.exec(["./hello.txt"], timeout_s=30)).exit_code == 126
        assert (await sandbox.exec(["true"], timeout_s=30, env={"PATH": "/nowhere"})).exit_code == 127
        assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"], timeout_s=30)).exit_code == 128 + 15
        assert (await sandbox.exec(["bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}"], timeout_s=30)).exit_code == 128 + 13
        long = await sandbox.exec(["x" * 200_000], timeout_s=30)
        assert (long.exit_code, long.stderr[:4], len(long.stderr) < 300) == (126, b"xxxx", True)
        for command in ([], [""], ["a\0b"]):
            with pytest.raises(ValueError, match="cannot run"):
                await sandbox.exec(command, timeout_s=30)

    use(body)


def test_output_keeps_head_and_tail(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        result = await sandbox.exec(["sh", "-c", "seq 100000; seq 3 >&2"], timeout_s=30, output_limit=20)
        assert result.output_truncated
        assert result.stdout == b"1\n2\n3\n4\n5\n\n[... 588875 bytes cut ...]\n99\n100000\n"
        assert result.stderr == b"1\n2\n3\n"
        exact = await sandbox.exec(["printf", "0123456789"], timeout_s=30, output_limit=10)
        assert (exact.stdout, exact.output_truncated) == (b"0123456789", False)

    use(body)


async def stopped_once_heard(sandbox, script, output_limit=1000):
    """What becomes of a script that never ends, at a deadline that was late enough for it to say something."""
    for timeout_s in (0.3, 3, 30):
        result = await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s, output_limit=output_limit)
        if result.stdout:
            break
    return result


def test_a_deadline_meets_whatever_runs_and_nothing_survives_a_command(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        flood = await stopped_once_heard(sandbox, "yes & yes >&2", output_limit=100)
        assert (flood.outcome, flood.exit_code, flood.output_truncated) == ("timed_out", 137, True)
        said = await stopped_once_heard(sandbox, "echo before; while :; do :; done")
        assert (said.outcome, said.stdout) == ("timed_out", b"before\n")
        daemon = "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' &) ; nohup sleep 1000 & echo done"
        assert (await sandbox.exec(["sh", "-c", daemon], timeout_s=30)).stdout == b"done\n"
        left = await sandbox.exec(["sh", "-c", "exec ls -d /proc/[0-9]*"], timeout_s=30)
        assert len(left.stdout.split()) == 3  # process 1, the request from outside, and ls

    use(body)


def test_orphans_are_reaped_while_a_command_runs(use, base):
    begin = "for i in 1 2 3 4 5; do (sh -c 'echo $$ >> orphans' &); done; until [ $(wc -l < orphans) = 5 ]; do sleep .01; done"
    script = f"{begin}; for pid in $(cat orphans); do while [ -e /proc/$pid ]; do sleep .01; done; done; echo none"

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        assert (await sandbox.exec(["sh", "-c", script], timeout_s=60)).stdout == b"none\n"

    use(body)


def test_what_a_command_shares_by_the_kernels_names_ends_with_it(use, base):
    probe = """
import ctypes
libc = ctypes.CDLL(None)
assert min(libc.shmget(7, 4096, 0o1600), libc.semget(7, 1, 0o1600), libc.msgget(7, 0o1600)) >= 0
"""
    count = ["sh", "-c", "tail -qn +2 /proc/sysvipc/*"]

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        made = await sandbox.exec(["sh", "-c", f"python3 -c '{probe}' && {count[2]} | wc -l"], timeout_s=30)
        assert made.stdout == b"3\n", made
        assert (await sandbox.exec(count, timeout_s=30)).stdout == b""

    use(body)


def test_too_many_processes(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base, limits=Limits(processes=20)))
        bomb = await sandbox.exec(["bash", "-c", "b() { b | b & }; b; sleep 20"], timeout_s=30)
        assert (bomb.outcome, bomb.exit_code) == ("exited", 137)
        assert b"too many processes" in bomb.stderr
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0

    use(body)


def test_output_comes_while_the_command_runs(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        heard: list[tuple[str, bytes]] = []
        first = asyncio.Event()

        def hear(stream, data) -> None:
            heard.append((stream, data))
            first.set()

        command = ["sh", "-c", "echo one; until [ -e go ]; do sleep .01; done; echo two >&2"]
        running = asyncio.create_task(sandbox.exec(command, timeout_s=30, on_output=hear))
        await asyncio.wait_for(first.wait(), 60)
        for name in cluster.pods():
            cluster.containers[name].file("scratch", "work/go").touch()
        result = await running
        assert heard == [("stdout", b"one\n"), ("stderr", b"two\n")]
        assert (result.stdout, result.stderr) == (b"one\n", b"two\n")

    use(body)


def test_cancelling_kills_what_runs_and_the_sandbox_goes_on(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.exec(["sh", "-c", "sleep 1000; echo no > late"], timeout_s=2000), 0.5)
        left = await sandbox.exec(["sh", "-c", "ls late; exec ls -d /proc/[0-9]*"], timeout_s=30)
        assert len(left.stdout.split()) == 3

    use(body)


def test_what_a_command_does_to_who_asks_for_it_keeps_no_answer_back(use, base, monkeypatch):
    monkeypatch.setattr(live, "FAILURES", 1)
    probe = """
import os, signal, sys, time
end = time.monotonic() + 0.3
while time.monotonic() < end:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid not in (1, os.getpid()):
            try: os.kill(pid, getattr(signal, sys.argv[1]))
            except OSError: pass
"""

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        for name in ("SIGKILL", "SIGSTOP"):
            result = await sandbox.exec(["python3", "-c", probe, name], timeout_s=60)
            assert (result.outcome, result.exit_code) == ("exited", 0), result.stderr
        assert (await sandbox.exec(["echo", "on"], timeout_s=60)).stdout == b"on\n"

    use(body)


def test_closing_ends_what_runs_and_says_so(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        begun = asyncio.Event()
        command = ["sh", "-c", "echo; exec sleep 1000"]
        running = asyncio.create_task(sandbox.exec(command, timeout_s=2000, on_output=lambda stream, data: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await running

    use(body)


def test_calls_at_once_take_turns(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        calls = [sandbox.exec(["sh", "-c", f"echo {n} >> log; wc -l < log"], timeout_s=30) for n in range(5)]
        assert sorted(int(result.stdout) for result in await asyncio.gather(*calls)) == [1, 2, 3, 4, 5]

    use(body)


def test_files(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base, limits=Limits(file_size_mb=1)))
        data = bytes(range(256)) * 1000
        await sandbox.write("new/deep/file", data)
        assert await sandbox.read("/app/new/deep/file") == data
        await sandbox.exec(["sh", "-c", "mkfifo pipe; ln -s /proc/1/environ secret; ln -s /nowhere gone"], timeout_s=30)
        with pytest.raises(FileNotFoundError):
            await sandbox.read("gone")
        for path in ("pipe", "secret", "/dev/zero", "/app", "/proc/self/mem"):
            with pytest.raises(OSError):
                await sandbox.read(path)
        with pytest.raises(OSError, match="too large"):
            await sandbox.read("new/deep/file", max_bytes=10)
        with pytest.raises(OSError):
            await sandbox.write("/usr/planted", b"")
        with pytest.raises(OSError, match="file_size_mb"):
            await sandbox.write("big", b"x" * (1 << 21))
        grown = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big; stat -c %s big"], timeout_s=30)
        assert grown.stdout == b"1048576\n"

    use(body)


def test_read_only_folders_cannot_be_written_by_any_command(use, base, tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text("exit 0")

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base, read_only={"/tests": tests, "/base": base}))
        script = "cat /tests/test.sh /base/hello.txt; rm -f /tests/test.sh || echo kept"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
        assert result.stdout == b"exit 0hellokept\n"
        with pytest.raises(OSError):
            await sandbox.write("/tests/test.sh", b"exit 1")

    use(body)


def test_snapshot_and_reset(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        script = "echo one > one; rm hello.txt; echo t > /tmp/t; mkdir -m 0 closed; chmod 0 one"
        await sandbox.exec(["sh", "-c", script], timeout_s=30)
        await sandbox.snapshot()
        await sandbox.exec(["sh", "-c", "rm -rf one link; echo two > two; rm /tmp/t; echo s > /dev/shm/s"], timeout_s=30)
        await sandbox.reset()
        seen = await sandbox.exec(["sh", "-c", "ls -A . /tmp /dev/shm; cat one"], timeout_s=30)
        assert seen.stdout.decode().split() == [".:", "closed", "deep", "link", "one", "/dev/shm:", "/tmp:", "t", "one"]
        await sandbox.close()
        again = await pool.acquire(SandboxSpec(base))
        await again.exec(["sh", "-c", "rm -rf * /tmp/*; echo x > y"], timeout_s=30)
        await again.reset()
        seen = await again.exec(["sh", "-c", "ls -A . /tmp /dev/shm"], timeout_s=30)
        assert seen.stdout.decode().split() == [".:", "deep", "hello.txt", "link", "/dev/shm:", "/tmp:"]
        assert pool.counts["reused"] == 1

    use(body)


def test_the_base_can_be_what_the_image_has(use):
    async def body(pool, cluster) -> None:
        spec = SandboxSpec(None, workdir="/opt/repository", image="registry.test/swe:1")
        for _ in range(2):
            sandbox = await pool.acquire(spec)
            assert (await sandbox.exec(["sh", "-c", "cat file; echo changed > file"], timeout_s=30)).stdout == b"of the image\n"
            await sandbox.close()
        assert pool.counts["reused"] == 1

    use(body, image_files={"/opt/repository/file": "of the image\n"})


def test_nothing_inside_reaches_process_1_or_reads_what_it_holds(use, base):
    probe = """
import os, signal, socket
s = socket.socket(socket.AF_UNIX)
s.connect("\\0gagar")
s.settimeout(5)
try:
    s.send(b"\\0\\0\\0\\x0f\\0\\0\\0\\6cancel\\0\\0\\0\\0011")
    print("answer", s.recv(10))
except OSError:
    print("refused")
for number in range(1, 32):
    os.kill(1, number)
for path in ("/proc/1/mem", "/proc/1/environ", "/gagar/init"):
    try:
        print(path, open(path, "rb").read(1))
    except OSError:
        print("closed")
"""

    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        result = await sandbox.exec(["python3", "-c", probe], timeout_s=30)
        assert result.stdout.split() in ([b"refused"] + [b"closed"] * 3, [b"answer", b"b''"] + [b"closed"] * 3), result
        assert (await sandbox.exec(["echo", "on"], timeout_s=30)).stdout == b"on\n"

    use(body)


def test_memory_that_ran_out_is_told_from_the_control_group_and_from_the_pod(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        name, begun = sandbox.pod.pod, asyncio.Event()
        waiting = ["sh", "-c", "echo said; until [ -e go ]; do sleep .01; done; exit 9"]
        running = asyncio.create_task(sandbox.exec(waiting, timeout_s=30, on_output=lambda stream, data: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        cluster.containers[name].memory_kill("main")
        cluster.containers[name].file("scratch", "work/go").touch()
        result = await running
        assert (result.outcome, result.stdout) == ("out_of_memory", b"said\n")
        running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=2000))
        await asyncio.sleep(0.2)
        await cluster.run_out_of_memory(name)
        assert (await running).outcome == "out_of_memory"
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"], timeout_s=30)

    use(body)


def test_specs_that_no_pod_can_be(use, base, tmp_path):
    async def body(pool, cluster) -> None:
        (tmp_path / "file").touch()
        for workdir in ("relative", "/", "/usr/app"):
            with pytest.raises(ValueError, match=workdir):
                await pool.acquire(SandboxSpec(base, workdir=workdir))
        with pytest.raises(FileNotFoundError, match="missing"):
            await pool.acquire(SandboxSpec(base / "missing"))
        with pytest.raises(ValueError, match="folders alone"):
            await pool.acquire(SandboxSpec(base, read_only={"/tests": tmp_path / "file"}))
        with pytest.raises(ValueError, match="hides a part"):
            await pool.acquire(SandboxSpec(base, read_only={"/tmp/tests": base}))
        with pytest.raises(ValueError, match="in the workdir"):
            await pool.acquire(SandboxSpec(base, read_only={"/app/deep": base}))

    use(body)


def test_a_root_that_can_be_written_is_used_once(use, base):
    async def body(pool, cluster) -> None:
        for _ in range(2):
            sandbox = await pool.acquire(SandboxSpec(base))
            await sandbox.exec(["sh", "-c", "echo x > /planted"], timeout_s=30)
            await sandbox.close()
        assert pool.counts["started"] >= 2
        assert pool.counts["reused"] == 0

    use(body, pods=replace(PODS, read_only_root=False))
