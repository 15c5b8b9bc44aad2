import ast
import errno
import platform

import pytest

from gagar_sandbox import seccomp
from gagar_sandbox.local import LocalSandbox

PROBE = """
import ctypes, errno, fcntl, os, resource, socket, sys

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments, *[0] * (6 - len(arguments)))
    return ctypes.get_errno()

def refusal(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return error.errno
    return 0

print({
    "denied": {number: call(number) for number in map(int, sys.argv[2].split(","))},
    "x32": call(0x40000000 + 39),
    "newer": [call(number) for number in (463, 467, 600)],
    "clone3": call(435),
    "new user namespace": call(int(sys.argv[1]), 0x10000000),
    "families": [family for family in (1, 2, 17, 38, 40) if refusal(socket.socket, family, socket.SOCK_DGRAM) == 0],
    "type into a terminal": refusal(fcntl.ioctl, os.openpty()[1], 0x5412, b"x"),
    "size of a terminal": refusal(fcntl.ioctl, os.openpty()[1], 0x5413, bytes(8)),
    "limits of PID 1": refusal(resource.prlimit, 1, resource.RLIMIT_NOFILE, (1, 1)),
    "limits of its own": refusal(resource.prlimit, 0, resource.RLIMIT_NOFILE, (9, 9)),
    "processors of PID 1": refusal(os.sched_setaffinity, 1, [0]),
    "processors of its own": refusal(os.sched_setaffinity, 0, [0]),
    "filter": [line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")],
})
"""


@pytest.mark.skipif(platform.machine() not in seccomp.MACHINES, reason="no filter for this processor")
def test_what_the_filter_refuses(use):
    column = list(seccomp.MACHINES).index(platform.machine())
    denied = [numbers[column] for numbers in seccomp.DENIED.values() if numbers[column] is not None]

    async def body(sandbox: LocalSandbox) -> None:
        words = ["python3", "-c", PROBE, str(seccomp.CLONE[column]), ",".join(map(str, denied))]
        result = await sandbox.exec(words, timeout_s=60)
        assert result.exit_code == 0, result.stderr
        assert ast.literal_eval(result.stdout.decode()) == {
            "denied": dict.fromkeys(denied, errno.EPERM),
            "x32": errno.ENOSYS,
            "newer": [errno.ENOSYS] * 3,
            "clone3": errno.ENOSYS,
            "new user namespace": errno.EPERM,
            "families": [1, 2],
            "type into a terminal": errno.EPERM,
            "size of a terminal": 0,
            "limits of PID 1": errno.EPERM,
            "limits of its own": 0,
            "processors of PID 1": errno.EPERM,
            "processors of its own": 0,
            "filter": ["2"],
        }

    use(body)


def test_threads_and_processes_work_under_the_filter(use):
    async def body(sandbox: LocalSandbox) -> None:
        script = """
import multiprocessing, subprocess, threading
thread = threading.Thread(target=lambda: print("thread", flush=True)); thread.start(); thread.join()
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, [-1, -2]), flush=True)
    subprocess.run("echo shell | cat", shell=True, check=True)
"""
        await sandbox.write("t.py", script.encode())
        result = await sandbox.exec(["python3", "t.py"], timeout_s=60)
        assert result.stdout == b"thread\n[1, 2]\nshell\n", result.stderr

    use(body)


def test_a_processor_without_a_filter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert seccomp.program() is None
