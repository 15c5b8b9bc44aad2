"""`gagar doctor --gpu`: what a GPU of this machine computes, against what it should."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gagar_mcore.launcher.doctor import print_findings
from gagar_mcore.launcher.gpu import ProbeFailed, gpu_findings, look_for_gpus
from gagar_mcore.launcher.local import log_tail, rank_environment
from gagar_sandbox import Check

DEADLINE_S = 900.0  # nvcc and Triton compile on the first run


def print_gpu_diagnosis() -> bool:
    """One line a finding; True where all that a run on a GPU needs is there and computes what it should."""
    try:
        gpus = look_for_gpus()
    except ProbeFailed as error:
        print(f"gagar: {error}", file=sys.stderr)
        return False
    if (lack := gpus.shortage(1)) is not None:
        print(f"gagar: no GPU to check: {lack}", file=sys.stderr)
        return False
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "checks.log"
        computed = run_checks("cuda", log)
        sound = print_findings([*gpu_findings(gpus), *computed])
        if not all(check.ok for check in computed):
            print(f"the log of the checks ends:\n{log_tail(log, lines=40)}", file=sys.stderr)
    return sound


def run_checks(device: str, log: Path) -> list[Check]:
    """The answers of `trainer/machine_checks.py`, a child process with a deadline; one more where it does not come to its end."""
    answers = log.with_suffix(".jsonl")
    command = [sys.executable, "-m", "gagar_mcore.trainer.machine_checks", str(answers), "--device", device]
    environment = os.environ | rank_environment(threads=1)
    try:
        with open(log, "wb") as out:
            code = subprocess.run(command, stdout=out, stderr=out, env=environment, timeout=DEADLINE_S, check=False).returncode
        end = f"ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        end = f"was ended after {DEADLINE_S:.0f} s"
    lines = answers.read_text().splitlines() if answers.is_file() else []
    found = [Check(**json.loads(line)) for line in lines]
    return (
        found if not end else [*found, Check("the checks", False, f"the process that computes {end}", "the log below says why")]
    )
