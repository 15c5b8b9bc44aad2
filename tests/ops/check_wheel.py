"""`python tests/ops/check_wheel.py WHEEL`: the fused step runs out of the unpacked wheel where there is no compiler."""

import os
import subprocess
import sys
import tempfile
import zipfile

PROGRAM = """
import torch
import gagar_mcore
from gagar_mcore.ops import fused, library, reference
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LossSpec

assert gagar_mcore.__file__.startswith({root!r}), gagar_mcore.__file__
assert library.library("cpu") is not None, "the wheel carries no CPU library"
columns = (-torch.rand(9), -torch.rand(9), torch.ones(9, dtype=torch.uint8), *torch.randn(2, 2, dtype=torch.float64))
layout = TokenLayout.build(torch.tensor([0, 4, 9]))
loss, expected = (module.policy_loss(*columns, layout, LossSpec())[0] for module in (fused, reference))
torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
"""


def main(wheel: str) -> None:
    with tempfile.TemporaryDirectory() as root, zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)
        environment = os.environ | {"PYTHONPATH": root, "CXX": "no-compiler", "XDG_CACHE_HOME": root}
        subprocess.run([sys.executable, "-c", PROGRAM.format(root=root)], cwd=root, env=environment, timeout=120, check=True)
        libraries = sorted(name for name in archive.namelist() if name.endswith(".so"))
    print(f"{wheel}: the fused step runs; carries {', '.join(libraries)}")


if __name__ == "__main__":
    main(sys.argv[1])
