import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = {
    "group_id": "g",
    "trajectories": [{"id": f"t{i}", "reward": int(i < 4), "valid": True} for i in (1, 2, 3, 4)],
    "verdict": {"factors": {"t1": 1.0, "t2": 0.85}, "hacks": ["t3"]},
}


def gagar(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gagar_mcore.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_a_dry_run_says_what_would_run_and_starts_nothing(tmp_path: Path) -> None:
    result = gagar("train", "tiny", f"output={tmp_path / 'run'}", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "TP 2" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_recipe_for_a_gpu_is_validated_without_one_and_not_started(tmp_path: Path) -> None:
    validated = gagar("train", "single-gpu", f"output={tmp_path / 'run'}", "--dry-run")
    assert validated.returncode == 0, validated.stderr
    assert "1 ranks on cuda" in validated.stdout
    assert "machine  not this one: torch" in validated.stdout
    started = gagar("train", "single-gpu", f"output={tmp_path / 'run'}")
    assert started.returncode == 1
    assert started.stderr.startswith("gagar: engine.device, trainer.device: cuda, but torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nope"], "no such file and no shipped recipe"),
        (["train", "tiny", "rollout.group_sise=3"], "rollout.group_sise: unknown field"),
        (["train", "tiny", "rollout.group_size=1"], "rollout.group_size"),
        (["train", "tiny", "trainer.tp=3"], "trainer.tp: 3 does not divide"),
        (["train", "tiny", "trainer.ep=3"], "trainer.ep: 3 does not divide"),
        (["train", "tiny", "model.init=/nowhere"], "model.init: /nowhere"),
        (["train", "tiny", "model.init=random"], "model.init: random"),
        (["train", "tiny", "rollout.max_context=4096"], "rollout.max_context: 4096 exceeds"),
        (["train", "tiny", "method.min_valid=9"], "method.min_valid: 9 exceeds"),
        (["train", "tiny", "tasks.source=harbor", "tasks.path=/nowhere"], "tasks.path: /nowhere"),
        (["train", "tiny", "deterministic=true", "sandbox.concurrency=4"], "sandbox.concurrency: 4 leaves no room"),
        (["tasks", "check", "/nowhere"], "/nowhere"),
        (["report", "/nowhere"], "/nowhere"),
        (["explain", "/nowhere", "m"], "/nowhere: no run directory"),
        (["credit", "--cap", "0.5"], "--cap: must be"),
        (["import", "a.traj", "--out", "/nowhere/out.jsonl"], "/nowhere: no such folder"),
        (["rollout", "nope"], "no such file"),
        (["sft", "nope"], "no such file"),
        (["serve", "policy", "nope"], "no such file"),
        (["serve", "grader", "tiny"], "grading.model: required to serve a grader"),
        (["train", "tiny", "engine.kind=sglang", "deterministic=true"], "deterministic: SGLang has no such mode on a CPU"),
        (["sft", "tiny-sft", "trainer.tp=3"], "trainer.tp: 3 does not divide"),
        (["simulate", "tiny", "--from", "/nowhere"], "/nowhere: holds no trajectories to fit to"),
        (["config", "show", "nope"], "no such file"),
        (["plan", "nope"], "nope: no such file, and neither a shipped recipe nor a preset"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_each_before_anything_starts(tmp_path: Path, arguments: list[str], message: str) -> None:
    output = [f"output={tmp_path / 'run'}"] if arguments[0] in ("train", "sft") and len(arguments) > 2 else []
    result = gagar(*arguments, *output)
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_used_output_is_refused_and_an_empty_one_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    for command in ("train", "rollout"):
        used = gagar(command, "tiny", f"output={tmp_path / 'run'}")
        assert (used.returncode, "already used; continue it with gagar train --resume" in used.stderr) == (1, True)
    missing = gagar("train", "tiny", f"output={tmp_path / 'other'}", "--resume")
    assert (missing.returncode, "no run to resume" in missing.stderr) == (1, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_credit_reads_and_writes_standard_streams_and_files(tmp_path: Path) -> None:
    line = json.dumps(EXAMPLE) + "\n"
    result = gagar("credit", stdin=line)
    assert result.returncode == 0
    answer = json.loads(result.stdout)
    assert answer["lambda"] == pytest.approx(1.0810810810810811)
    assert answer["advantages"] == pytest.approx({"t1": 0.5405405405, "t2": 0.4594594595, "t3": -0.5, "t4": -0.5})
    (tmp_path / "in.jsonl").write_text(line)
    gagar("credit", "--in", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl"))
    assert json.loads((tmp_path / "out.jsonl").read_text()) == answer


def test_a_bad_line_is_named_the_good_ones_answered_and_the_exit_code_is_2() -> None:
    result = gagar("credit", stdin='{"group_id": 1}\n' + json.dumps(EXAMPLE) + "\n")
    assert result.returncode == 2
    assert result.stderr.startswith("line 1: ")
    assert json.loads(result.stdout)["group_id"] == "g"


def test_a_shown_recipe_is_complete() -> None:
    result = gagar("config", "show", "tiny", "method.name=grpo")
    assert result.returncode == 0
    assert "name: grpo" in result.stdout
    assert "positive_bounds" in result.stdout


def test_the_real_harbor_tasks_are_read_and_validated() -> None:
    harbor = Path(__file__).resolve().parents[2] / "shared" / "data" / "harbor"
    if not harbor.is_dir():
        pytest.skip("the sample of real Harbor tasks is not at hand")
    result = gagar("tasks", "check", "--no-run", str(harbor))
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "5 of 5 tasks usable"
