"""Stand-ins for `sgl_kernel`, whose wheel wants CUDA's libraries, and for two operations that torchvision declares in a library
built for CUDA. SGLang imports their names everywhere and calls none of them on a CPU: a name imports, and a call says what is
missing."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

import torch

NAME = "sgl_kernel"
ABSENT = f"{NAME}.scalar_type"  # SGLang has a stand-in of its own for this one
VISION = torch.library.Library("torchvision", "DEF")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_: object, **__: object) -> NoReturn:
            raise NotImplementedError(f"{self.__name__}.{name} is a CUDA kernel, which this machine cannot run")

        return kernel


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = name.partition(".")[0] == NAME and name != ABSENT
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has no contents."""


def install() -> None:
    sys.meta_path.insert(0, _Finder())
    for name in ("nms", "qnms"):
        VISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
