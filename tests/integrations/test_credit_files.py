import json
import subprocess
import sys

import pytest

from gagar_mcore.config.load import RecipeError
from gagar_mcore.credit import CreditParams
from gagar_mcore.integrations.credit_files import credit_files, credit_params

LINE = json.dumps({"group_id": "g", "trajectories": [{"id": i, "reward": r, "valid": True} for i, r in (("a", 1), ("b", 0))]})


def test_file_to_file(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + LINE.encode() + b"\n" + b'{"group_id": "\xff"}\n' + LINE.encode())
    assert credit_files(str(source), str(target), CreditParams()) == 2
    assert [json.loads(line)["advantages"] for line in target.read_text().splitlines()] == [{"a": 0.5, "b": -0.5}] * 2


def test_the_input_is_never_overwritten(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(LINE)
    with pytest.raises(ValueError, match="is the input itself"):
        credit_files(str(source), str(tmp_path / "." / "in.jsonl"), CreditParams())
    assert source.read_text() == LINE


def test_a_stream_is_answered_line_by_line():
    command = [sys.executable, "-c", "from gagar_mcore.cli import main; main()", "credit", "--method", "grpo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            process.stdin.write(LINE + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["advantages"] == {"a": 0.5, "b": -0.5}
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_options_and_settings_become_constants():
    assert credit_params("gagar", "1.5", 2, []) == CreditParams()
    settings = ["length_penalty=true", "weights=[0.2, 0.2, 0.2, 0.2, 0.2]"]
    assert credit_params("grpo", "2", 3, settings) == CreditParams("grpo", 2.0, 3, (0.2,) * 5, length_penalty=True)


@pytest.mark.parametrize("cap", ["none", "None"])
def test_no_cap_can_be_said(cap):
    assert credit_params("gagar", cap, 2, []).cap is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("t3", "write it as"),
        ("t3=7", "^method: t3: "),
        ("length_gama=2", "^method: length_gama: unknown field"),
        ("behaviour_shaping=true", "^behaviour_shaping: behaviour shaping works on tokens, in a trainer; gagar credit sees traj"),
        ("kappa=3", "^kappa: behaviour shaping works on tokens"),
        ("behaviour_bounds=[0.4, 3]", "^behaviour_bounds: behaviour shaping works on tokens"),
        ("cap=2", "^cap: say it with --cap$"),
        ("name=grpo", "^name: say it with --method$"),
        ("min_valid=3", "^min_valid: say it with --min-valid$"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(setting, message):
    with pytest.raises(RecipeError, match=message):
        credit_params("gagar", "1.5", 2, [setting])


@pytest.mark.parametrize("cap", ["0.5", "nan", "inf", "1e999", "much", "", "true", "[1"])
def test_a_cap_that_cannot_be_names_its_option(cap):
    with pytest.raises(RecipeError, match=r"^--cap: must be a finite number of at least 1, or none, got "):
        credit_params("gagar", cap, 2, [])


def test_other_options_that_cannot_be_are_named_too():
    with pytest.raises(RecipeError, match=r"^--min-valid: must be a whole number of at least 2, got 1"):
        credit_params("gagar", "1.5", 1, [])
    with pytest.raises(RecipeError, match=r"^--method: must be gagar, grpo or downweight_only, got 'ppo'"):
        credit_params("ppo", "1.5", 2, [])
