"""Answers to questions: compared with those accepted, or judged by the question's own program in a sandbox."""

import re
import time
from dataclasses import dataclass
from fractions import Fraction

from gagar_mcore.agent.calls import CallError, after_thinking
from gagar_mcore.records.types import TestStatus, Verification
from gagar_mcore.tasks.question import Question
from gagar_mcore.verify.persistence import twice
from gagar_sandbox.types import Limits, SandboxLost, SandboxPool, SandboxSpec

OUTPUT_CHARACTERS = 2000
NAME = "answer"  # of the one test of a question

_MARKED = re.compile(r"answer\s*[:=]\s*(.+)", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"[+-]?\d{1,60}(\.\d{1,60})?")


@dataclass(frozen=True, slots=True)
class _Run:
    """`right`: what the program says; None where it does not say, for the reason in `output`."""

    right: bool | None
    output: str


@dataclass(frozen=True, slots=True)
class AnswerVerifier:
    """`timeout_s` bounds one run of a program."""

    pool: SandboxPool
    limits: Limits
    timeout_s: float

    async def verify(self, question: Question, text: str) -> Verification:
        """Reward 1.0 exactly when the answer in `text` is right. A program that does not say is held against the answer, unless
        it cannot judge an answer that it must take (where none is known: an empty one) either: only that is an infrastructure
        error, which no answer can bring about. Raises SandboxUnavailable."""
        started = time.monotonic()
        answer, fault = final_answer(text), None
        if question.check is None:
            run = _Run(any(same_answer(answer, accepted) for accepted in question.accepted), "")
        else:
            run = await self._run_persistently(question, answer)
            fault = await self._fault(question) if run.right is None else None
        status: TestStatus = "passed" if run.right else "failed"
        seconds = time.monotonic() - started
        return Verification(float(run.right is True), {NAME: status}, run.output[-OUTPUT_CHARACTERS:], seconds, fault)

    async def _fault(self, question: Question) -> str | None:
        known = question.accepted[0] if question.accepted else ""
        control = await self._run_persistently(question, known)
        if control.right is None or (question.accepted and not control.right):
            return f"the program does not judge {known!r} as it should: {control.output}"
        return None

    async def _run_persistently(self, question: Question, answer: str) -> _Run:
        try:
            return await twice(lambda: self._run(question, answer))
        except SandboxLost as error:
            return _Run(None, f"sandbox lost: {error}")

    async def _run(self, question: Question, answer: str) -> _Run:
        assert question.check is not None
        sandbox = await self.pool.acquire(SandboxSpec(question.check.parent, "/checks", {}, self.limits))
        try:
            await sandbox.write("/tmp/answer", answer.encode(errors="replace"))
            await sandbox.write("/tmp/data", question.data.encode())
            command = ["python3", "-I", question.check.name, "/tmp/answer", "/tmp/data"]
            result = await sandbox.exec(command, timeout_s=self.timeout_s)
        finally:
            await sandbox.close()
        output = (result.stdout + result.stderr).decode(errors="replace")
        if result.outcome == "exited" and (result.exit_code == 0 or (result.exit_code == 1 and not result.stderr)):
            return _Run(result.exit_code == 0, output)  # an error of the program itself ends it with 1 too, and is told
        return _Run(None, f"{output}\nexit code {result.exit_code}, {result.outcome.replace('_', ' ')}")


def final_answer(text: str) -> str:
    r"""What a text gives as its answer: after the last "answer:", else within the last \boxed{}, else its last line."""
    try:
        said = after_thinking(text)
    except CallError:
        return ""
    for pattern in (_MARKED, _BOXED):
        if found := pattern.findall(said):
            return str(found[-1]).strip()
    return (said.strip().split("\n") or [""])[-1].strip()


def same_answer(given: str, accepted: str) -> bool:
    """Equal but for white space at the ends and its amount; numbers are equal by their value."""
    given, accepted = " ".join(given.split()), " ".join(accepted.split())
    if _NUMBER.fullmatch(given) and _NUMBER.fullmatch(accepted):
        return Fraction(given) == Fraction(accepted)
    return given == accepted
