"""The worked example of docs/credit.md and its picture are what the code gives."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_picture_shows_what_the_code_gives():
    drawn = runpy.run_path(str(DOCS / "draw_credit.py"))
    assert drawn["picture"]() == (DOCS / "credit.svg").read_text(encoding="utf-8")
    _, credit = drawn["example"]()
    assert credit.lam == pytest.approx(1.4925, abs=5e-5)
    assert [round(credit.advantages[id], 3) for id in ("t1", "t5", "t6")] == [0.56, 0.112, -0.625]
