"""Memory of the machine that this process runs on, found without a look through CUDA."""

import shutil
import subprocess

import psutil

QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 20


def host_memory() -> float:
    return float(psutil.virtual_memory().total)


def gpu_memory() -> float | None:
    """Bytes of the largest GPU, None where NVIDIA's tool is not there or does not say."""
    if shutil.which(QUERY[0]) is None:
        return None
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        return None
    sizes = [int(line) for line in answer.split() if line.isdigit()]
    return float(max(sizes) << 20) if sizes else None
