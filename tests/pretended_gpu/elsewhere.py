"""A GPU pretended on the CPU: its tensors say that they are `elsewhere`, and to compute with one of them and one of the CPU is an
error, as it is on a GPU. What it cannot show is anything that a GPU computes otherwise."""

from typing import Any

import torch
import torch.utils.backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

torch.utils.backend_registration._setup_privateuseone_for_python_backend("elsewhere")
DEVICE = torch.device("elsewhere", 0)
DATA = torch.Tensor.data
MOVES = ("aten::_to_copy", "aten::to", "aten::copy_")


class Elsewhere(torch.Tensor):
    """Holds a tensor of the CPU."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        return self.held.tolist()

    def new_tensor(self, *args: Any, **kwargs: Any) -> "Elsewhere":
        return Elsewhere(self.held.new_tensor(*args, **kwargs))

    @property
    def data(self) -> Any:
        return DATA.__get__(self)

    @data.setter
    def data(self, other: "Elsewhere") -> None:
        DATA.__set__(self, other)
        self.held = other.held

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


class PretendedGpu(TorchDispatchMode):
    """While it is entered, `device="elsewhere:0"` makes an `Elsewhere`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(function, args, kwargs or {})


def run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    values = tree_flatten((args, kwargs))[0]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    there = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    here = any(tensor.dim() for tensor in tensors if not isinstance(tensor, Elsewhere))  # numbers are taken along
    if there and here and function._schema.name not in MOVES:
        raise RuntimeError(f"{function}: expected all tensors on one device")
    if function._schema.name == "aten::histc":  # a GPU counts integers, the CPU has no kernel for them
        args = (args[0].float(), *args[1:])
    result = function(*tree_map(_here, args), **tree_map(_here, kwargs))
    if function._schema.is_mutable:
        return args[0]
    wanted = [value for value in values if isinstance(value, torch.device)]
    there = wanted[0].type == DEVICE.type if wanted else there
    return tree_map(lambda value: Elsewhere(value) if there and isinstance(value, torch.Tensor) else value, result)


def _here(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) else value
