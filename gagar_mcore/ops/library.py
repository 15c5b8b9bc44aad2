"""The compiled libraries of the fused step through ctypes."""

import ctypes
import functools
import logging
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p

from gagar_mcore.ops.build import BuildError, Device, library_path

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


FUNCTIONS: dict[Device, dict[str, tuple[type, ...]]] = {
    "cpu": {
        "gagar_step_cpu": (c_void_p, c_int),
        "gagar_count_cpu": (c_void_p, c_void_p, c_int),
        "gagar_predicted_token": (c_void_p, c_int64),
    },
    "cuda": {
        "gagar_step_workspace": (c_void_p,),
        "gagar_step_cuda": (c_void_p, c_void_p, c_void_p),
        "gagar_count_workspace": (c_void_p,),
        "gagar_count_cuda": (c_void_p, c_void_p, c_void_p, c_void_p),
    },
}


@functools.cache
def library(device: Device) -> ctypes.CDLL | None:
    """The library for `device`; None, with one warning, where it cannot be made."""
    try:
        loaded = ctypes.CDLL(str(library_path(device)))
        return declared(loaded, device)
    except (BuildError, OSError) as error:
        log.warning("the fused step runs as plain PyTorch on %s, slower: %s", device, error)
        return None


def declared(loaded: ctypes.CDLL, device: Device) -> ctypes.CDLL:
    """Argument and result types set. Raises OSError for a library built from other sources."""
    loaded.gagar_step_size.restype = c_int64
    if loaded.gagar_step_size() != ctypes.sizeof(Step):
        raise OSError(f"{loaded._name} was built for another version of gagar")
    for name, arguments in FUNCTIONS[device].items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = c_int64 if name.endswith(("workspace", "token")) else c_int
    return loaded
