import signal

import pytest

import gagar_sandbox.host
from gagar_sandbox import Limits, SandboxSpec, owner
from gagar_sandbox.cgroup_find import find_cgroups
from gagar_sandbox.local import LocalSandbox

SMALL = Limits(memory_mb=64, processes=24, file_size_mb=4, disk_mb=16)
GROW = "kept = []\nwhile True: kept.append(bytearray(1 << 20))"
FORK_SIX = "import os, time\nfor _ in range(6):\n if os.fork() == 0: break"
FILL_20_MB = "kept = bytes(range(256)) * (80 << 10)"
FORK_BOMB = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.1)"


@pytest.fixture(params=["control groups", "watch"])
def limited_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to bound what processes use together."""
    if request.param == "watch":
        monkeypatch.setattr(gagar_sandbox.host, "find_cgroups", lambda: None)
    elif find_cgroups() is None:
        pytest.skip("no control group is writable here")
    return request.param


def test_memory_of_one_process(use_alone, base, limited_by):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", GROW], timeout_s=60)
        assert (result.outcome, result.exit_code) == ("out_of_memory", 137)
        assert (await sandbox.exec(["python3", "-c", "bytearray(20 << 20); print('fine')"], timeout_s=30)).stdout == b"fine\n"

    use_alone(body, SandboxSpec(base, limits=SMALL))


def test_memory_of_many_processes_together(use_alone, base, limited_by):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", f"{FORK_SIX}\n{FILL_20_MB}\ntime.sleep(60)"], timeout_s=60)
        assert result.outcome == "out_of_memory"

    use_alone(body, SandboxSpec(base, limits=SMALL))


def test_pages_shared_by_processes_count_once_in_control_groups(use, base):
    if find_cgroups() is None:
        pytest.skip("no control group is writable here")

    async def body(sandbox: LocalSandbox) -> None:
        script = f"{FILL_20_MB}\n{FORK_SIX}\ntime.sleep(0.5)"
        assert (await sandbox.exec(["python3", "-c", script], timeout_s=60)).outcome == "exited"

    use(body, SandboxSpec(base, limits=SMALL))


def test_a_fork_bomb_ends_and_the_sandbox_goes_on(use_alone, base, limited_by):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", FORK_BOMB], timeout_s=0.7)
        assert result.exit_code == 137
        assert result.outcome != "exited" or b"more than 24 processes" in result.stderr
        assert (await sandbox.exec(["sh", "-c", "echo alive"], timeout_s=30)).stdout == b"alive\n"

    use_alone(body, SandboxSpec(base, limits=SMALL))


def test_processes_up_to_the_limit_are_allowed(use_alone, base, limited_by):
    async def body(sandbox: LocalSandbox) -> None:
        script = "for n in $(seq 20); do sleep 0.3 & done; wait; echo all"
        assert (await sandbox.exec(["sh", "-c", script], timeout_s=30)).stdout == b"all\n"

    use_alone(body, SandboxSpec(base, limits=SMALL))


def test_size_of_a_file(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec(["sh", "-c", "exec cat /dev/zero > big"], timeout_s=30)).exit_code == 128 + signal.SIGXFSZ
        assert (await sandbox.exec(["stat", "-c", "%s", "big"], timeout_s=30)).stdout == b"%d\n" % (4 << 20)

    use(body, SandboxSpec(base, limits=SMALL))


def test_all_places_share_one_disk(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        script = """for place in /app /tmp /var/tmp /logs /dev/shm; do
            for n in 1 2 3; do head -c 3000000 /dev/zero > $place/$n; done; done 2> /dev/null
        du -cb /app /tmp /var/tmp /logs /dev/shm | tail -1"""
        result = await sandbox.exec(["bash", "-c", script], timeout_s=60)
        written = int(result.stdout.split()[0])
        assert 14 << 20 < written < 17 << 20

    use(body, SandboxSpec(base, limits=SMALL))


def test_no_core_files_and_few_descriptors(use, base):
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["bash", "-c", "ulimit -c; ulimit -n; ulimit -c 1"], timeout_s=30)
        assert result.stdout == b"0\n1024\n"
        assert result.exit_code == 1

    use(body, SandboxSpec(base, limits=SMALL))


def test_control_groups_are_gone_after_close(use_alone, base):
    groups = find_cgroups()
    if groups is None:
        pytest.skip("no control group is writable here")

    def mine() -> list[str]:
        return [str(leaf) for parent in groups.parents for leaf in parent.glob(f"{owner.prefix()}*")]

    async def body(sandbox: LocalSandbox) -> None:
        assert len(set(mine()) - before) == len(groups.parents)
        await sandbox.exec(["sh", "-c", "sleep 100 &"], timeout_s=30)

    before = set(mine())
    use_alone(body)
    assert set(mine()) == before
