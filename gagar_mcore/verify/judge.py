"""What a session handed in, judged by what its task is."""

from dataclasses import dataclass
from typing import Protocol

from gagar_mcore.records.types import Verification
from gagar_mcore.tasks.question import Problem, Question
from gagar_mcore.verify.answers import AnswerVerifier
from gagar_mcore.verify.verifier import Verifier


class Judge(Protocol):
    async def verify(self, task: Problem, submission: str) -> Verification:
        """submission: a patch, or the text that answers a question. Raises SandboxUnavailable."""


@dataclass(frozen=True, slots=True)
class JudgeByKind:
    tests: Verifier
    answers: AnswerVerifier

    async def verify(self, task: Problem, submission: str) -> Verification:
        """See Judge.verify."""
        if isinstance(task, Question):
            return await self.answers.verify(task, submission)
        return await self.tests.verify(task, submission)
