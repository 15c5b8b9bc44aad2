"""`gagar doctor`: what this machine can run, with the mend for what it cannot."""

import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gagar_mcore.launcher.gpu import ProbeFailed, gpu_findings, look_for_gpus
from gagar_mcore.ops.build import BuildError, compile_command
from gagar_sandbox import Check, diagnose


def print_diagnosis(directory: Path = Path()) -> bool:
    """Print every finding about this machine and `directory`, where runs would lie; True where all that is needed is there."""
    return print_findings([*_python(), *_packages(), _resources(), _storage(directory), *_sandbox(), *_gpu()])


def print_findings(findings: Sequence[Check]) -> bool:
    """True where all that is needed is there."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title in ("", "what", "found", "mend"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        mark = ("✓", "green") if finding.ok else ("✗", "red") if finding.needed else ("·", "yellow")
        table.add_row(Text(*mark), finding.name, Text(finding.detail), Text("" if finding.ok else finding.mend))
    Console().print(table)
    return all(finding.ok for finding in findings if finding.needed)


def _python() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    linux = sys.platform == "linux"
    return [
        Check("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer"),
        Check("operating system", linux, sys.platform, "training and sandboxes need Linux; a virtual machine or WSL 2 will do"),
        Check(
            "git", shutil.which("git") is not None, shutil.which("git") or "none", "install git: sandboxes take patches with it"
        ),
        _compiler(),
    ]


def _compiler() -> Check:
    try:
        return Check("C++ compiler", True, compile_command("cpu")[0])
    except BuildError as error:
        return Check("C++ compiler", False, "none", f"{error}; without one the fused step runs as plain PyTorch", needed=False)


def _packages() -> list[Check]:
    needed = ("torch", "megatron-core", "transformers", "tokenizers", "safetensors")
    optional = {"wandb": "pip install 'gagar-mcore[wandb]' for Weights & Biases", "transformer-engine": "only with a GPU: [gpu]"}
    findings = [_package(name, "pip install gagar-mcore, or run make smoke", True) for name in needed]
    return findings + [_package(name, mend, False) for name, mend in optional.items()]


def _package(name: str, mend: str, needed: bool) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name), needed=needed)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", mend, needed)


def _resources() -> Check:
    memory = psutil.virtual_memory().total >> 20
    detail = f"{os.cpu_count()} cores, {memory} MB memory"
    return Check("cores and memory", memory >= 6000, detail, "the tiny recipe wants 2 cores and 8 GiB")


def _storage(directory: Path) -> Check:
    """A run directory needs rename to be atomic and to replace, and files to be synced."""
    name = "storage for runs"
    try:
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            first, second = Path(folder) / "a", Path(folder) / "b"
            for path, text in ((first, "new"), (second, "old")):
                with open(path, "w") as file:
                    file.write(text)
                    os.fsync(file.fileno())
            os.replace(first, second)
            replaced = second.read_text() == "new" and not first.exists()
            (Path(folder) / "c").mkdir()
            os.rename(Path(folder) / "c", Path(folder) / "d")
    except OSError as error:
        return Check(name, False, str(error), "choose a local disk or a POSIX file system for output")
    free = shutil.disk_usage(directory).free >> 20
    mend = "choose a local disk or a POSIX file system with 2 GB free for output"
    return Check(name, replaced and free >= 2048, f"atomic rename {'works' if replaced else 'fails'}, {free} MB free", mend)


def _sandbox() -> list[Check]:
    return [replace(check, name=f"sandbox: {check.name}") for check in diagnose()]


def _gpu() -> list[Check]:
    """For recipes with `device: cuda`; no other needs one."""
    try:
        findings = gpu_findings(look_for_gpus())
    except ProbeFailed as error:
        findings = [Check("NVIDIA GPU", False, "unknown", str(error))]
    return [replace(check, name=f"one GPU: {check.name}", needed=False) for check in findings]
