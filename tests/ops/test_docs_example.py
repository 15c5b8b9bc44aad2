import math
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fused-step.md"


def test_the_example_of_the_page_runs(capsys):
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(code, PAGE.name, "exec"), names)

    assert math.isfinite(names["loss"].item()) and names["logprobs"].grad.count_nonzero() > 0
    assert "'trained_tokens': 9.0" in capsys.readouterr().out
