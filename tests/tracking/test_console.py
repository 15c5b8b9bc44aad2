import io
import math
import os
import pty
import re
import subprocess
import sys

import pytest

from gagar_mcore.tracking.console import Console, sparkline, step_line

METRICS = {
    "rollout/reward_mean": 0.5,
    "rollout/pass_rate": 0.55,
    "rollout/clean_share": 0.6,
    "rollout/tokens_mean": 24.31,
    "rollout/turns_mean": 3.2,
    "rollout/entropy": 0.4,
    "grading/tier1": 0.65,
    "grading/tier2": 0.33,
    "grading/tier3": 0.02,
    "credit/lambda_mean": 1.08,
    "train/rollout_logprob_abs_diff": 3.2e-6,
    "time/collect": 2.4,
    "time/grade": 0.1,
    "time/train": 1.2,
}
LIVE = """
import sys
from gagar_mcore.tracking.console import Console

with Console("gagar [red]tiny[/red]", 30) as console:
    console.stage("collect", 5, 16, kept=5, all_pass=2)
    console.message("evil [bold]text[/bold] \\x1b]0;title\\x07 \\x9b2J")
    for step in range(1, 12):
        console.step_finished(step, {"rollout/pass_rate": 0.5 + step / 100, "rollout/clean_share": 0.25})
    console.stage("grade", 1, 2)
"""


def in_terminal(code: str, columns: int) -> str:
    """What `code` writes to a terminal of that width."""
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=follower, stderr=follower, env=env)
    os.close(follower)
    written = b""
    try:
        while data := os.read(leader, 65536):
            written += data
    except OSError:  # the terminal's other end is closed
        pass
    os.close(leader)
    assert process.wait(timeout=60) == 0, written.decode()
    return written.decode()


def test_without_a_terminal_it_prints_a_line_a_step():
    file = io.StringIO()
    with Console("tiny", 30, file) as console:
        console.step_finished(0, {"eval/pass_rate": 0.59, "eval/clean_share": 0.54})
        console.stage("collect", 1, 16, kept=1)
        console.message("preparing tasks")
        console.step_finished(1, METRICS)
    assert file.getvalue().splitlines() == [
        "step 0/30  held-back pass 0.59 clean 0.54",
        "preparing tasks",
        "step 1/30  reward 0.50  pass 0.55  clean 0.60  tiers 65/33/2  λ 1.08  tokens 24.3  turns 3.2  entropy 0.40  "
        "Δlogp 3e-06  seconds 2.4+1.2",
    ]


def test_what_is_not_known_is_a_dash():
    assert "clean -  tiers -/-/-" in step_line(1, 2, {"rollout/pass_rate": 0.5, "rollout/clean_share": math.nan})


def test_messages_are_text_whatever_they_hold():
    file = io.StringIO()
    with Console("tiny", 30, file) as console:
        console.message("[red]x[/red] [/] \x1b[31m \udcff \u202e" + "y" * 5000)
    assert file.getvalue().startswith("[red]x[/red] [/] ␛[31m \\xff ⟨U+202E⟩yyy")
    assert re.search(r"… \[3,\d+ more characters\]$", file.getvalue())


def test_a_stream_that_knows_ascii_only_is_no_reason_to_fail():
    data = io.BytesIO()
    file = io.TextIOWrapper(data, encoding="ascii")
    with Console("tiny", 30, file) as console:
        console.step_finished(1, METRICS)
    file.flush()
    assert b"\\u03bb 1.08" in data.getvalue()


@pytest.mark.parametrize("columns", [80, 140])
def test_on_a_terminal_it_draws_progress_curves_and_the_last_steps(columns):
    written = in_terminal(LIVE, columns)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "gagar [red]tiny[/red]" in plain
    assert "evil [bold]text[/bold] ␛]0;title␇ ⟨U+009B⟩2J" in plain
    assert "\x1b]0;" not in written
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) == columns
    last = plain[plain.rindex("╭") :]
    assert re.search(r"grade +━+.* 1/2", last)
    assert "0.51 → 0.61" in last
    assert "step 12 of 30" in last
    rows = re.findall(r"^│ +(\d+) ", last, re.MULTILINE)
    assert rows == [str(step) for step in range(4, 12)]


def test_sparkline_spans_the_fifths_around_its_values():
    assert sparkline([0.4, 0.5, 0.6]) == "▁▄█"
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.6]) in "▁▂▃▄▅▆▇█"
