"""The compiled libraries of the fused step through ctypes."""

import ctypes
import functools
import logging
from ctypes import c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

from gagar_mcore.ops.build import SHIPPED, BuildError, Device, library_path

log = logging.getLogger(__name__)
LOSS_CODES = {"mimo": 0, "ppo": 1, "gspo": 2, "cispo": 3, "broadcast": 4}
NUM_COUNTS = 3


class Layout(ctypes.Structure):
    """`Layout` of csrc/step.h."""

    _fields_ = (
        ("cu_seqlens", c_void_p),
        ("cu_local", c_void_p),
        ("num_tokens", c_int64),
        ("num_local", c_int64),
        ("num_sequences", c_int64),
        ("cp_size", c_int32),
        ("cp_rank", c_int32),
        ("halved", c_int32),
        ("reserved", c_int32),
    )


class Step(ctypes.Structure):
    """`Step` of csrc/step.h."""

    _fields_ = (
        ("layout", Layout),
        ("logprobs", c_void_p),
        ("old_logprobs", c_void_p),
        ("ref_logprobs", c_void_p),
        ("rollout_logprobs", c_void_p),
        ("flags", c_void_p),
        ("advantages", c_void_p),
        ("weights", c_void_p),
        ("behaviour", c_void_p),
        ("counts", c_void_p),
        ("gradient", c_void_p),
        ("value", c_void_p),
        ("sums", c_void_p),
        ("maxima", c_void_p),
        ("loss", c_int32),
        ("bf16", c_int32),
        ("truncate", c_int32),
        ("dual", c_int32),
        *((name, c_float) for name in ("positive_low", "positive_high", "negative_low", "negative_high")),
        *((name, c_float) for name in ("dual_clip", "tis_cap", "kl_coef", "kappa")),
    )


FUNCTIONS: dict[Device, dict[str, tuple[type, tuple[type, ...]]]] = {
    "cpu": {
        "gagar_step_cpu": (c_int, (c_void_p, c_int)),
        "gagar_count_cpu": (c_int, (c_void_p, c_void_p, c_int)),
        "gagar_predicted_token": (c_int64, (c_void_p, c_int64)),
    },
    "cuda": {
        "gagar_refusal": (c_char_p, ()),
        "gagar_error": (c_char_p, (c_int,)),
        "gagar_step_workspace": (c_int64, (c_void_p,)),
        "gagar_step_cuda": (c_int, (c_void_p, c_void_p, c_void_p)),
        "gagar_count_workspace": (c_int64, (c_void_p,)),
        "gagar_count_cuda": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    },
}


class LoadError(BuildError):
    """A file that is no library, or not all of it."""


@functools.cache
def library(device: Device) -> ctypes.CDLL | None:
    """The library for `device`; None, with one warning, where it cannot be had."""
    try:
        return open_library(device)
    except (BuildError, OSError) as error:
        log.warning("the fused step runs as plain PyTorch on %s, slower: %s", device, error)
        return None


def open_library(device: Device) -> ctypes.CDLL:
    """Raises BuildError. A compiled file that does not load, cut short by a full disk, say, is compiled once more."""
    path = library_path(device)
    try:
        return declared(path, device)
    except LoadError:
        if path.parent == SHIPPED:
            raise
        path.unlink(missing_ok=True)
        return declared(library_path(device), device)


def declared(path: Path, device: Device) -> ctypes.CDLL:
    """The loaded library, with argument and result types. Raises BuildError for one that does not load, that was built from other
    sources, or whose kernels the device refuses."""
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.gagar_step_size.restype = c_int64
        for name, (result, arguments) in FUNCTIONS[device].items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LoadError(f"{path} does not load: {error}") from None
    if loaded.gagar_step_size() != ctypes.sizeof(Step):
        raise BuildError(f"{path} was built for another version of gagar")
    if device == "cuda" and (refusal := loaded.gagar_refusal()):
        raise BuildError(f"the kernels, built for sm_90 and later, do not run here: {refusal.decode()}")
    return loaded
