"""What docs/credit.md and docs/integrations.md say of the credit step, run as printed."""

import json
import subprocess
import sys

import pytest
from doc_blocks import DOCS, PAGE, block, run, text

CREDIT = DOCS / "credit.md"
OTHERS = ["torch", "megatron", "transformers", "tokenizers", "safetensors", "packaging", "psutil"]
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys({blocked}))
{code}
"""


def test_the_python_of_the_credit_page(capsys):
    exec(block("python", CREDIT), found := {})
    rounded = {id: round(advantage, 3) for id, advantage in found["credit"].advantages.items()}
    assert rounded == {"t1": 0.541, "t2": 0.459, "t3": -0.5, "t4": -0.5}
    assert capsys.readouterr().out.splitlines()[1] == "1.0810810810810811 False None"


def test_the_commands_of_the_credit_page(tmp_path):
    printed = run(text("gagar credit", "sh", CREDIT), tmp_path)
    assert (tmp_path / "credit.jsonl").read_text() == text("answer", "json", CREDIT)
    plain = json.loads((tmp_path / "credit.jsonl").read_text())["advantages"]
    corrected = json.loads(printed)["advantages"]
    assert corrected == pytest.approx({id: advantage * 4 / 3 for id, advantage in plain.items()})


def test_a_trajectory_with_lengths_is_as_the_credit_page_prints_it():
    printed = next(line for line in CREDIT.read_text().splitlines() if '"output_tokens"' in line)
    long = json.loads(printed.strip(" `."))
    line = json.dumps(
        {"group_id": "g", "trajectories": [long, {**long, "id": "t2", "turns": 99}, {**long, "id": "t3", "reward": 0}]}
    )
    answer = json.loads(run(f"gagar credit --method grpo length_penalty=true <<'END'\n{line}\nEND", None))
    assert answer["advantages"] == pytest.approx({"t1": 0.4, "t2": 0.2, "t3": -0.6})


def test_the_pipe_of_the_integrations_page(tmp_path):
    assert json.loads(run(text("pipe", "sh"), tmp_path))["advantages"] == {"a": 0.5, "b": -0.5}


@pytest.mark.parametrize(
    ("part", "missing", "code"),
    [
        ("`gagar credit`", ["numpy"], "sys.argv = ['gagar', 'credit']; from gagar_mcore.cli import main; main()"),
        ("verl, slime", ["yaml", "typer", "rich"], "import gagar_mcore.integrations.slime"),
        ("`gagar_mcore.credit`", ["numpy", "pydantic", "yaml", "typer", "rich"], "import gagar_mcore.credit"),
    ],
)
def test_a_part_needs_no_package_but_those_of_the_table(part, missing, code):
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {part}"))
    assert not any(package in row for package in missing)
    script = BLOCKED.format(blocked=OTHERS + missing, code=code)
    done = subprocess.run([sys.executable, "-c", script], input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
