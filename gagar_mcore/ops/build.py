"""Compiling the fused step: shipped with a wheel, else built once into the user's cache."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]
SOURCES = Path(__file__).parent / "csrc"
SHIPPED = Path(__file__).parent / "lib"
TIMEOUT_SECONDS = 600.0
NAMES: dict[Device, str] = {"cpu": "libgagar_cpu.so", "cuda": "libgagar_cuda.so"}
GCC_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
NVCC_FLAGS = (
    "-std=c++17",
    "-O3",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
    "-cudart=static",
    "-Xcompiler=-fPIC",
    "-shared",
)


class BuildError(RuntimeError):
    """A library that cannot be made here; the message says why and gives the mend."""


def library_path(device: Device) -> Path:
    """The compiled library: the shipped one, the cached one, or one compiled now. Raises BuildError."""
    shipped = SHIPPED / NAMES[device]
    if shipped.is_file():
        return shipped
    command = compile_command(device)
    target = cache_folder() / digest(command) / NAMES[device]
    if not target.is_file():
        compile_library(command, target)
    return target


def compile_command(device: Device) -> list[str]:
    """The compiler, its flags and the source; `CXX` and `NVCC` name other compilers. Raises BuildError where there is none."""
    variable, default = ("CXX", "c++") if device == "cpu" else ("NVCC", "nvcc")
    compiler = shlex.split(os.environ.get(variable) or default)
    if shutil.which(compiler[0]) is None:
        raise BuildError(f"no {compiler[0]} is on the PATH: install a C++ compiler, or set {variable}")
    if device == "cuda":
        return [*compiler, *NVCC_FLAGS, str(SOURCES / "cuda.cu")]
    return [*compiler, *GCC_FLAGS, "-fopenmp", str(SOURCES / "cpu.cpp")]


def compile_library(command: list[str], target: Path) -> str:
    """Compile into `target`, which appears whole or not at all: processes that build at once do not meet.

    Returns what the compiler said. Raises BuildError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        try:
            run = subprocess.run(
                [*command, "-o", str(made)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"{command[0]} did not finish in {TIMEOUT_SECONDS:.0f} s") from None
        if run.returncode:
            raise BuildError(f"{shlex.join(command)} failed: {run.stderr.strip()[-2000:]}")
        made.replace(target)
        return run.stdout + run.stderr


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gagar" / "ops"


def digest(command: list[str]) -> str:
    """Changes with the sources, the flags and the compiler."""
    version = subprocess.run([command[0], "--version"], capture_output=True, timeout=60, check=False).stdout
    parts = [shlex.join(command).encode(), version, *(path.read_bytes() for path in sorted(SOURCES.iterdir()))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the assembler says of one CUDA kernel; the name is mangled."""

    name: str
    registers: int
    spilled_bytes: int


def register_report() -> list[KernelReport]:
    """Registers and spills of every kernel on sm_90. Raises BuildError where nvcc is missing or fails."""
    with tempfile.TemporaryDirectory() as folder:
        said = compile_library([*compile_command("cuda"), "-Xptxas=-v"], Path(folder) / NAMES["cuda"])
    pattern = r"entry function '(\w+)' for 'sm_90'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    return [KernelReport(m[1], int(m[4]), int(m[2]) + int(m[3])) for m in re.finditer(pattern, said, re.DOTALL)]
