import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_without_verl_the_import_says_what_to_install():
    code = "import gagar_mcore.integrations.verl"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 1
    assert "gagar_mcore.integrations.verl needs verl, which is missing: install gagar into" in found.stderr.splitlines()[-1]
