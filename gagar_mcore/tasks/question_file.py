"""Questions from a file of JSON lines.

    {"question": "What is 3 + 4?", "answer": "7"}
    {"id": "q2", "question": "Name two primes with the sum 30.", "check": "primes.py", "data": {"sum": 30}, "answer": "7 23"}

`answer` is a text or a list of them; `check` names a program in the folder `checks` beside the file.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gagar_mcore.tasks.question import Question
from gagar_mcore.tasks.task import TaskError

CHECKS = "checks"
_Text = Annotated[str, Field(min_length=1, max_length=1 << 20)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    question: _Text
    answer: _Text | Annotated[list[_Text], Field(min_length=1)] | None = None
    check: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}\.py$")] | None = None
    data: Any = None
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if self.answer is None and self.check is None:
            raise ValueError("needs an answer, or a check")
        return self


def load_questions(path: Path) -> list[Question]:
    """Every question of the file, in order; one without an id is called by its line. Raises TaskError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}; name a file of JSON lines in UTF-8") from error
    questions = [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise TaskError(f"{path}: holds no question; write one JSON object a line")
    numbers: dict[str, int] = {}
    for number, question in enumerate(questions, 1):
        if (first := numbers.setdefault(question.id, number)) != number:
            raise TaskError(f"{path}: questions {first} and {number} have the id {question.id!r}; change one")
    return questions


def _question(path: Path, number: int, text: str) -> Question:
    try:
        line = _Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else "line"
        reason = "must be a text, or a list of texts, none of them empty" if field == "answer" else first["msg"].lower()
        raise TaskError(f"{path}: line {number}: {field}: {reason}; correct it") from error
    check = path.parent / CHECKS / line.check if line.check else None
    if check is not None and not check.is_file():
        raise TaskError(f"{path}: line {number}: check: no file {check}; put the program there")
    answers = [line.answer] if isinstance(line.answer, str) else line.answer or []
    return Question(line.id or f"line-{number}", line.question, tuple(answers), check, json.dumps(line.data))
