"""Which GPUs training can use here, as PyTorch sees them: asked in a child process, since to ask takes memory of each."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.ops.build import NAMES, SHIPPED, BuildError, compile_command
from gagar_sandbox import Check

DEADLINE_S = 120.0
DRIVER = Path("/proc/driver/nvidia/version")
LEAST_FREE = 4 << 30  # two processes with their libraries, a tiny model each
LEAST_CAPABILITY = (9, 0)


class ProbeFailed(RuntimeError):
    """PyTorch could not be asked; the message says what came instead of an answer."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """free, total: bytes."""

    name: str
    capability: tuple[int, int]
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """version: of PyTorch. cuda: what it was built for, None for a build without."""

    version: str
    cuda: str | None
    devices: tuple[Gpu, ...]

    def shortage(self, needed: int) -> str | None:
        """Why no `needed` processes can have a GPU each, and the mend, in one line; None where they can."""
        if self.cuda is None:
            return f"torch {self.version} is built without CUDA; install a build with CUDA, and look for a GPU with nvidia-smi"
        if not self.devices:
            return f"torch {self.version} sees no GPU; install or load the NVIDIA driver, and look at CUDA_VISIBLE_DEVICES"
        if len(self.devices) < needed:
            return f"torch sees {len(self.devices)} GPUs and {needed} are needed; choose a smaller layout, or another machine"
        return None


def look_for_gpus() -> Gpus:
    """Takes a few seconds. Raises ProbeFailed."""
    command = [sys.executable, "-m", "gagar_mcore.launcher.gpu_probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProbeFailed(f"torch did not say in {DEADLINE_S:.0f} s which GPUs it sees; see whether nvidia-smi does") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProbeFailed(f"torch could not be asked for GPUs: {last}")
    answer = json.loads(done.stdout)
    devices = tuple(Gpu(name, (major, minor), free, total) for name, major, minor, free, total in answer["devices"])
    return Gpus(answer["version"], answer["cuda"], devices)


def gpu_findings(gpus: Gpus) -> list[Check]:
    """What a run on one GPU needs, and the compiled loss step, which it would like to have."""
    lack = gpus.shortage(1) or ""
    build = f"{gpus.version}, " + (f"CUDA {gpus.cuda}" if gpus.cuda else "without CUDA")
    driver = DRIVER.read_text().splitlines()[0] if DRIVER.is_file() else "none"
    return [
        Check("NVIDIA driver", DRIVER.is_file(), driver, "install the NVIDIA driver of this machine's GPU"),
        Check("torch with CUDA", gpus.cuda is not None, build, lack),
        *(
            [_memory(gpus.devices[0])]
            if gpus.devices
            else [Check("NVIDIA GPU", False, "none seen", lack if gpus.cuda else "torch with CUDA first")]
        ),
        _fused_step(gpus),
    ]


def _memory(gpu: Gpu) -> Check:
    detail = f"{gpu.name}, sm_{_sm(gpu)}, {gpu.free >> 20} of {gpu.total >> 20} MB free"
    mend = f"end what holds its memory (nvidia-smi): {LEAST_FREE >> 20} MB must be free"
    return Check("NVIDIA GPU", gpu.free >= LEAST_FREE, detail, mend)


def _fused_step(gpus: Gpus) -> Check:
    instead = "plain PyTorch runs in its place"
    if gpus.devices and gpus.devices[0].capability < LEAST_CAPABILITY:
        detail = f"made for sm_90 and later, not for sm_{_sm(gpus.devices[0])}"
        return Check("CUDA fused step", False, detail, instead, needed=False)
    if (shipped := SHIPPED / NAMES["cuda"]).is_file():
        return Check("CUDA fused step", True, str(shipped), needed=False)
    try:
        return Check("CUDA fused step", True, f"compiled on first use by {compile_command('cuda')[0]}", needed=False)
    except BuildError as error:
        return Check("CUDA fused step", False, "none", f"{error}; without it {instead}", needed=False)


def _sm(gpu: Gpu) -> str:
    return "".join(map(str, gpu.capability))
