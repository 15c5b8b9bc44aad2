"""The words that graders are told, each version in a file of its own that is not changed any more."""

from pathlib import Path

GRADE = "grade-v1"
RUBRIC = "rubric-v1"
HACKS = "hacks-v1"


def prompt(name: str) -> str:
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
