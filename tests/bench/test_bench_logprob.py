import json
import subprocess
import sys
from pathlib import Path

import pytest

from gagar_mcore.bench.logprob import main, run, table

SMALL = ["--case", "2048x8192x16", "--chunk-mib", "4", "--rounds", "1", "--device", "cpu", "--threads", "1"]
LOGITS = 2048 * 8192 * 4


def test_the_chunked_variant_needs_less_than_one_copy_of_the_logits_and_the_plain_one_more_than_two(capsys):
    main([*SMALL, "--json"])
    result = json.loads(capsys.readouterr().out)
    (case,) = result["cases"]

    assert case["chunked"]["peak_bytes"] < LOGITS / 2
    assert case["plain"]["peak_bytes"] > 2 * LOGITS
    assert case["memory_ratio"] == pytest.approx(case["plain"]["peak_bytes"] / case["chunked"]["peak_bytes"])
    assert case["plain"]["seconds"] > 0 and case["chunked"]["seconds"] > 0
    assert "2048x8192x16" in table(result)


def test_the_script_prints_its_help_without_loading_torch():
    script = Path(__file__).parents[2] / "benchmarks" / "logprob.py"
    code = f"import runpy, sys; sys.argv = ['logprob', '--help']; runpy.run_path({str(script)!r}, run_name='__main__')"
    watched = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "--case" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("case", ["2048", "2048x0x16", "1x2xthree"])
def test_a_case_that_is_none_is_refused(case, capsys):
    with pytest.raises(SystemExit):
        main(["--case", case])

    assert f"{case!r}: a case is TOKENSxVOCABULARYxHIDDEN" in capsys.readouterr().err


def test_a_measurement_that_fails_says_why():
    with pytest.raises(RuntimeError, match="float31"):
        run(["2x2x2"], dtype="float31", device="cpu", rounds=1)
