"""Landlock alone, without the mounts that refuse the same things first."""

import subprocess
import sys
from pathlib import Path

import pytest

import gagar_sandbox
from gagar_sandbox.inside.landlock import LEAST, version

PROBE = """
import os, sys
from gagar_sandbox.inside.kernel import prctl
from gagar_sandbox.inside.landlock import restrict

allowed, other = sys.argv[1:]
prctl(38, 1)
restrict([allowed])

def tried(call, *words):
    try:
        call(*words)
    except OSError:
        return "refused"
    return "done"

print(
    tried(open, f"{allowed}/new", "w"),
    tried(os.mkdir, f"{allowed}/folder"),
    tried(os.rename, f"{allowed}/new", f"{allowed}/folder/new"),
    tried(open, f"{other}/file"),
    tried(open, f"{other}/file", "a"),
    tried(open, f"{other}/new", "w"),
    tried(os.unlink, f"{other}/file"),
    tried(os.link, f"{other}/file", f"{allowed}/link"),
    tried(open, "/dev/null", "w"),
)
"""


@pytest.mark.skipif(version() < LEAST, reason="this kernel has no Landlock, or one that is too old")
def test_only_what_is_named_can_be_changed(tmp_path: Path):
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "file").write_text("x")
    code = str(Path(gagar_sandbox.__file__).parents[1])
    words = [sys.executable, "-c", PROBE, str(allowed), str(other)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": code})
    assert done.stdout.split() == ["done"] * 4 + ["refused"] * 4 + ["done"], done.stderr
