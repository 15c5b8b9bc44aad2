"""Answers judged in real sandboxes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.question import Question
from gagar_mcore.tasks.questions import generate_question
from gagar_mcore.verify.answers import AnswerVerifier, final_answer, same_answer
from gagar_sandbox import Limits, LocalPool

WithPool = Callable[[Callable[[LocalPool], Any]], Any]


def verify(with_pool: WithPool, question: Question, *texts: str) -> list[Verification]:
    async def all_of(pool: LocalPool) -> list[Verification]:
        return [await AnswerVerifier(pool, Limits(), 60.0).verify(question, text) for text in texts]

    judged: list[Verification] = with_pool(all_of)
    return judged


def checked(tmp_path: Path, program: str, accepted: tuple[str, ...] = ()) -> Question:
    (tmp_path / "check.py").write_text(program)
    return Question("q", "?", accepted, tmp_path / "check.py", "{}")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7", "7"),
        ("3 and 4 make\n7\n", "7"),
        ("The answer: 8? No.\nAnswer: 7", "7"),
        (r"so \boxed{9} or rather \boxed{7}", "7"),
        ("<think>Answer: 3</think>\n7", "7"),
        ("<think>Answer: 7", ""),
        ("", ""),
    ],
)
def test_where_the_answer_is(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("given", "same"), [("7", True), ("7.0", True), ("+7", True), (" 7 ", True), ("07", True), ("8", False), ("7e0", False)]
)
def test_numbers_are_equal_by_value(given: str, same: bool) -> None:
    assert same_answer(given, "7") == same
    assert not same_answer("1" + "0" * 10_000, "7")


def test_every_generated_question_takes_its_answer_and_no_other(with_pool: WithPool) -> None:
    for question in (generate_question(4, index) for index in range(6)):
        right, wrong = verify(with_pool, question, f"Answer: {question.accepted[0]}", "nothing")
        assert (right.reward, wrong.reward) == (1.0, 0.0)
        assert right.infrastructure_error is wrong.infrastructure_error is None


def test_a_program_that_fails_on_an_answer_holds_against_the_answer(with_pool: WithPool, tmp_path: Path) -> None:
    question = checked(tmp_path, "import sys; sys.exit(int(open(sys.argv[1]).read()) != 7)", ("7",))
    right, wrong, broken = verify(with_pool, question, "7", "8", "seven")
    assert [v.reward for v in (right, wrong, broken)] == [1.0, 0.0, 0.0]
    assert broken.infrastructure_error is None and "ValueError" in broken.output


@pytest.mark.parametrize("program", ["import sys; sys.exit(3)", "raise SystemError", "import os; os.abort()"])
def test_a_program_that_judges_nothing_is_the_infrastructures_fault(with_pool: WithPool, tmp_path: Path, program: str) -> None:
    [verification] = verify(with_pool, checked(tmp_path, program), "7")
    assert verification.infrastructure_error is not None and verification.reward == 0.0


def test_what_an_answer_does_to_a_program_stays_in_the_sandbox(with_pool: WithPool, tmp_path: Path) -> None:
    """A program that evaluates what the policy wrote is careless; the machine is none the worse for it."""
    question = checked(tmp_path, "import sys; sys.exit(eval(open(sys.argv[1]).read()) != 7)", ("7",))
    target = tmp_path / "written"
    [verification] = verify(with_pool, question, f"open({str(target)!r}, 'w').write('x') * 0 + 8")
    assert verification.reward == 0.0 and not target.exists()
