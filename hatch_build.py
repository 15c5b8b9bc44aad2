"""Puts the compiled libraries of the fused step into the wheel where `GAGAR_COMPILE=1` asks for it, as `make wheel` does."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledLibraries(BuildHookInterface):
    """The CPU library always, the CUDA one where nvcc is at hand. Without the request the wheel is pure Python, and compiles on
    first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("GAGAR_COMPILE") != "1":
            return
        sys.path.insert(0, self.root)
        from gagar_mcore.ops.build import NAMES, SHIPPED, BuildError, compile_command, compile_library

        folder = Path(self.root) / "build" / "lib"
        for device, name in NAMES.items():
            try:
                compile_library(compile_command(device), folder / name)
            except BuildError as error:
                if device == "cpu":
                    raise
                self.app.display_warning(f"the wheel carries no CUDA library: {error}")
                continue
            target = SHIPPED.relative_to(self.root) / name
            build_data["force_include"][str(folder / name)] = str(target)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
