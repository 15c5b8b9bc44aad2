import json
import subprocess
import sys

import pytest

from gagar_mcore.bench import fused_step, logprob

MAINS = {"fused-step": fused_step.main, "logprob": logprob.main}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gagar_mcore.cli", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("name", "case", "ratio"), [("fused-step", "256x2", "eager_to_fused"), ("logprob", "512x4096x32", "memory_ratio")]
)
def test_a_benchmark_runs_from_the_command_line(name: str, case: str, ratio: str) -> None:
    result = bench(name, "--json", "--rounds", "1", "--case", case, "--device", "cpu")
    assert result.returncode == 0, result.stderr
    (entry,) = json.loads(result.stdout)["cases"]
    assert entry["case"] == case
    assert entry[ratio] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fused-step", "--case", "64"), "a case is TOKENSxSEQUENCES"),
        (("fused-step", "--case", "5x10", "--device", "cpu"), "more tokens than sequences"),
        (("fused-step", "--rounds", "0"), "must be a positive number"),
        (("fused-step", "--threads", "-1"), "must be a number of at least 0"),
        (("logprob", "--case", "0x8x8"), "a case is TOKENSxVOCABULARYxHIDDEN"),
        (("logprob", "--rounds", "none"), "must be a positive number"),
        (("logprob", "--device", "tpu"), "must be auto, cpu or cuda"),
    ],
)
def test_values_that_make_no_sense_are_refused_in_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = arguments
    with pytest.raises(SystemExit, match="2"):
        MAINS[name](options)
    printed = capsys.readouterr().err
    assert said in printed and f"usage: gagar bench {name}" in printed


@pytest.mark.parametrize("name", ["fused-step", "logprob"])
def test_an_unknown_option_is_refused(name: str) -> None:
    result = bench(name, "--fast")
    assert result.returncode == 2
    assert "--fast" in result.stderr


@pytest.mark.parametrize("name", ["trainer", "batch-build", "weight-sync"])
def test_a_refusal_names_its_command(name: str) -> None:
    refused = bench(name, "--nope")
    assert (refused.returncode, f"gagar bench {name}: error: unrecognized arguments: --nope" in refused.stderr) == (2, True)
