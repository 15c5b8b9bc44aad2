"""The devices that run the fused step: the CPU library, the CUDA kernels on CPU threads, and a GPU where there is one."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gagar_mcore.ops import op
from gagar_mcore.ops.build import SOURCES
from gagar_mcore.ops.library import declared, library

SHIM = Path(__file__).parent / "cuda_on_cpu"


@pytest.fixture(scope="session")
def cuda_kernels(tmp_path_factory):
    """The CUDA kernels compiled for CPU threads, called like the CPU library."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is needed to run the CUDA kernels on CPU threads")
    target = tmp_path_factory.mktemp("shim") / "libshim.so"
    command = ["g++", "-x", "c++", "-std=c++20", "-O1", "-pthread", "-fPIC", "-shared", "-I", str(SHIM)]
    subprocess.run([*command, str(SOURCES / "cuda.cu"), "-o", str(target)], check=True, timeout=170, capture_output=True)
    loaded = declared(target, "cuda")

    def workspace(kind, step):
        size = getattr(loaded, f"gagar_{kind}_workspace")(step)
        return np.full(size // 8 + 1, np.nan)  # what a kernel does not write must not be read

    def step_cpu(step, threads):
        space = workspace("step", step)
        return loaded.gagar_step_cuda(step, space.ctypes.data, None)

    def count_cpu(step, out, threads):
        space = workspace("count", step)
        return loaded.gagar_count_cuda(step, out, space.ctypes.data, None)

    return SimpleNamespace(gagar_step_cpu=step_cpu, gagar_count_cpu=count_cpu)


@pytest.fixture(params=["cpu", "cuda kernels", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where tensors of a test lie; the library behind the operators is exchanged to fit."""
    if request.param == "cuda kernels":
        kernels = request.getfixturevalue("cuda_kernels")
        monkeypatch.setattr(op, "library", lambda device: kernels)
        return "cpu"
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU is here")
    if library(request.param) is None:
        pytest.skip("no compiler is here")
    return request.param
