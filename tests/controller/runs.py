"""Runs of `gagar train` as a user starts them, cut small."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

SMALL = [
    "deterministic=true",
    "tasks.count=8",
    "tasks.heldout_count=2",
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "rollout.oversample=8",
    "train.steps=3",
    "train.checkpoint_every=2",
    "train.eval_samples=2",
    "tracking.wandb=off",
]


def gagar(*arguments: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "gagar_mcore.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start(output: Path, *more: str) -> subprocess.Popen[str]:
    """`gagar train tiny`, cut small."""
    return gagar("train", "tiny", f"output={output}", *SMALL, *more)


def finish(process: subprocess.Popen[str], timeout_s: float = 170.0) -> str:
    """What the process printed; asserts that it succeeded."""
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, output
    return output


def kill_when(process: subprocess.Popen[str], condition: Callable[[], bool], deadline_s: float = 170.0) -> list[psutil.Process]:
    """SIGKILL the process as soon as the condition holds; returns the children that it had."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert process.poll() is None, f"ended too early:\n{process.communicate()[0]}"
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    return children


def wait_for_end(processes: list[psutil.Process], timeout_s: float = 30.0) -> list[psutil.Process]:
    """The processes that still live after the deadline."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return alive
