import os
import sys

import pytest

from gagar_sandbox import SandboxSpec
from gagar_sandbox.local import LocalSandbox

PROBE = r"""
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def tried(call):
    try:
        return call()
    except OSError as error:
        return "refused"

def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
    return "connected"

facts = {
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapBnd", "CapEff"))],
    "new privileges": [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")],
    "user": (os.getuid(), os.getgid()),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "internet": tried(lambda: connect(socket.AF_INET, ("1.1.1.1", 80))),
    "trace PID 1": libc.ptrace(16, 1, 0, 0),
    "memory of PID 1": tried(lambda: open("/proc/1/mem", "rb")),
    "pipes of PID 1": tried(lambda: os.open("/proc/1/fd/1", os.O_WRONLY)),
    "environment of PID 1": tried(lambda: open("/proc/1/environ").read()),
    "kernel settings": tried(lambda: open("/proc/sys/vm/swappiness", "w")),
    "user namespace": libc.unshare(0x10000000),
    "mount": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "host name": libc.sethostname(b"x", 1),
    "devices": tried(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0))),
    "parents of root": os.listdir("/"),
}
print(facts)
"""

EXPECTED = {
    "capabilities": ["0" * 16] * 3,
    "new privileges": ["1"],
    "user": (1000, 1000),
    "interfaces": ["lo"],
    "descriptors": [0, 1, 2],
    "internet": "refused",
    "trace PID 1": -1,
    "memory of PID 1": "refused",
    "pipes of PID 1": "refused",
    "environment of PID 1": "refused",
    "kernel settings": "refused",
    "user namespace": -1,
    "mount": -1,
    "host name": -1,
    "devices": "refused",
}


def test_what_hostile_code_finds(use):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", PROBE], timeout_s=60)
        facts = eval(result.stdout.decode() or repr(result.stderr))
        root = set(facts.pop("parents of root"))
        assert facts == EXPECTED
        known = {
            "app",
            "bin",
            "dev",
            "etc",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            "logs",
            "proc",
            "run",
            "sbin",
            "tmp",
            "usr",
            "var",
        }
        interpreter = {sys.base_prefix.split("/")[1]}
        assert root <= known | interpreter

    use(body)


def test_signals_do_not_reach_pid_1(use):
    async def body(sandbox: LocalSandbox) -> None:
        script = "for n in $(seq 64); do kill -$n 1; done 2>/dev/null; for n in $(seq 200); do kill -INT 1; done; echo alive"
        assert (await sandbox.exec(["bash", "-c", script], timeout_s=30)).stdout == b"alive\n"
        assert await sandbox.read("hello.txt") == b"hello"

    use(body)


def test_home_and_repository_are_not_seen(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        secret = base.parent / "secret"
        for path in (secret, os.path.expanduser("~/.ssh"), __file__):
            assert (await sandbox.exec(["test", "-e", str(path)], timeout_s=30)).exit_code == 1

    (base.parent / "secret").write_text("secret")
    use(body)


def test_read_only_paths(use, base, tmp_path):
    async def body(sandbox: LocalSandbox) -> None:
        script = "cat /tests/t.py /app/deep/one; echo x > /tests/t.py; echo x > /app/deep/one; rm -rf /tests/t.py; ls /tests/more"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
        assert result.stdout == b"testtestmore\nt.py\n"

    tests = tmp_path / "with space"
    tests.mkdir()
    (tests / "t.py").write_text("test")
    (tests / "more").mkdir()
    use(body, SandboxSpec(base, read_only={"/app/deep/one": tests / "t.py", "/tests/more": tests, "/tests": tests}))
    assert (tests / "t.py").read_text() == "test"


def test_the_system_cannot_be_replaced(use):
    """Else a command could leave a python3, a git or a loader of its own to those that come after it."""

    async def body(sandbox: LocalSandbox) -> None:
        script = "mv /run /run2; mv /etc /etc2; rm -f /bin /lib64; ln -sf /app/evil /run/gagar/bin/python3; touch /usr/bin/x"
        await sandbox.exec(["sh", "-c", script], timeout_s=30)
        result = await sandbox.exec(["sh", "-c", "readlink -f $(command -v python3); ls /usr/bin/x; id -un"], timeout_s=30)
        assert result.stdout.decode().split() == [os.path.realpath(sys._base_executable), "sandbox"]

    use(body)


@pytest.mark.parametrize("name", ["plain", "a:b,c\\d", "-dash", "ünï\ncode"])
def test_bases_with_odd_names(use, tmp_path, name):
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(["sh", "-c", "echo more >> file"], timeout_s=30)
        assert await sandbox.read("/deep/work/file") == b"onemore\n"

    folder = tmp_path / name
    folder.mkdir()
    (folder / "file").write_text("one")
    use(body, SandboxSpec(folder, workdir="/deep/work"))
