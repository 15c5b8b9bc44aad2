import subprocess
import sys

PROBE = """
import sys
before = set(sys.modules)
import gagar_mcore.credit
allowed = set(sys.stdlib_module_names) | {"gagar_mcore", "numpy"}
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - allowed))
"""


def test_credit_needs_the_standard_library_and_numpy_alone():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
