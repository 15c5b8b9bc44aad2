"""Compiling the fused step: shipped with a wheel, else built once into the user's cache."""

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagar_mcore.devices import Device

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
    target = cache_folder() / digest(command, compiler(device)) / NAMES[device]
    if not target.is_file():
        compile_library(command, target)
    return target


def compiler(device: Device) -> list[str]:
    """The words that call it; `CXX` and `NVCC` name others than the system's. Raises BuildError where there is none."""
    variable, default, kit = ("CXX", "c++", "a C++ compiler") if device == "cpu" else ("NVCC", "nvcc", "the CUDA toolkit")
    text = os.environ.get(variable, "").strip() or default
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BuildError(f"{variable}: {text!r} is no command: {error}") from None
    if shutil.which(words[0]) is None:
        raise BuildError(f"no {words[0]} is on the PATH: install {kit}, or set {variable}")
    return words


def compile_command(device: Device) -> list[str]:
    """The compiler, its flags and the source. Raises BuildError."""
    if device == "cuda":
        return [*compiler(device), *NVCC_FLAGS, str(SOURCES / "cuda.cu")]
    return [*compiler(device), *GCC_FLAGS, "-fopenmp", str(SOURCES / "cpu.cpp")]


def compile_library(command: list[str], target: Path) -> str:
    """Compile into `target`, which appears whole or not at all: processes that build at once do not meet.

    Returns what the compiler said. Raises BuildError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            said = run([*command, "-o", str(made)])
            made.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent}: {error}; set XDG_CACHE_HOME to a folder that can be written") from None
    return said


def run(command: list[str]) -> str:
    """What a command says, while it ends well and in time. Raises BuildError."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    try:
        process = subprocess.Popen(command, **pipes, start_new_session=True)
    except OSError as error:
        raise BuildError(f"{command[0]} does not start: {error}") from None
    with process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # the compilers that the command started, too
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise BuildError(f"{shlex.join(command)} did not finish in {TIMEOUT_SECONDS:.0f} s") from None
    if process.returncode:
        raise BuildError(f"{shlex.join(command)} failed: {said.strip()[-2000:]}")
    return said


def cache_folder() -> Path:
    """Raises BuildError where the user has no home."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise BuildError(f"{error}; set XDG_CACHE_HOME to a folder that can be written") from None
    return Path(base) / "gagar" / "ops"


def digest(command: list[str], compiler: list[str]) -> str:
    """Changes with the sources, the flags, the compiler and the kind of machine."""
    parts = [platform.machine(), shlex.join(command), run([*compiler, "--version"])]
    sources = (path.read_bytes() for path in sorted(SOURCES.iterdir()))
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *sources])).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the assembler says of one CUDA kernel, with the numbers of its template: `step_kernel<LOSS,BF16>`."""

    name: str
    registers: int
    spilled_bytes: int


def register_report() -> list[KernelReport]:
    """Registers and spills of every kernel on sm_90. Raises BuildError where nvcc is missing or fails."""
    with tempfile.TemporaryDirectory() as folder:
        said = compile_library([*compile_command("cuda"), "-Xptxas=-v"], Path(folder) / NAMES["cuda"])
    pattern = r"entry function '(\w+)' for 'sm_90'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    found = re.finditer(pattern, said, re.DOTALL)
    return [KernelReport(readable(m[1]), int(m[4]), int(m[2]) + int(m[3])) for m in found]


def readable(mangled: str) -> str:
    name = re.search(r"(step|finish|count|join)_kernel", mangled)
    numbers = re.findall(r"L[ib](\d)E", mangled)
    return f"{name[0] if name else mangled}{'<' + ','.join(numbers) + '>' if numbers else ''}"
