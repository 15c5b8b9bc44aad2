"""Memory of the machine that this process runs on, found without a look through CUDA."""

import importlib.util
import os
import runpy
import shutil
import subprocess
from pathlib import Path

import psutil

QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 20


def host_memory() -> float:
    return float(psutil.virtual_memory().total)


def gpu_memory() -> float | None:
    """Bytes of the largest GPU; None where the trainer would run on the CPU: no GPU, none visible, or a torch without CUDA."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or shutil.which(QUERY[0]) is None or not _torch_has_cuda():
        return None
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        return None
    sizes = [int(line) for line in answer.split() if line.isdigit()]
    return float(max(sizes) << 20) if sizes else None


def _torch_has_cuda() -> bool:
    """As its version file says, which loads in no time."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda") is not None
