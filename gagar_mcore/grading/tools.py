"""The tools of a grader: what it may call, and what a call does."""

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagar_mcore.grading import views
from gagar_mcore.grading.checks import SCRIPT_CHARACTERS, Checks
from gagar_mcore.grading.citations import check_citation
from gagar_mcore.grading.desk import Desk
from gagar_mcore.grading.fence import Fence
from gagar_mcore.grading.roster import ToolError

Name = Annotated[str, Field(max_length=40, description="A candidate's name.")]
First = Annotated[int, Field(ge=0, le=10**6)]
Line = Annotated[int, Field(ge=1, le=10**7)]
Lines = Annotated[int, Field(ge=1, le=400)]


class Arguments(BaseModel):
    """Of one tool. The docstring is the tool's description."""

    model_config = ConfigDict(extra="forbid")


class Overview(Arguments):
    """The task, and each candidate in short: outcome, size of its patch, files, one line a turn. Begin here."""


class ReadTurns(Arguments):
    """What a candidate did and saw, turn by turn. Turns are counted from 0."""

    candidate: Name
    first: First = 0
    count: Annotated[int, Field(ge=1, le=20)] = 5


class ReadPatch(Arguments):
    """A candidate's patch, with the line numbers that citations use."""

    candidate: Name
    first: Line = 1
    count: Lines = 200


class ReadTests(Arguments):
    """The result of each of the task's tests on a candidate, and what the run printed."""

    candidate: Name


class ReadFile(Arguments):
    """A file of the repository: at the base commit, or as a candidate leaves it."""

    path: Annotated[str, Field(max_length=1000)]
    candidate: Annotated[str, Field(max_length=40, description="A candidate's name; empty: the base commit.")] = ""
    first: Line = 1
    count: Lines = 200


class Search(Arguments):
    """Lines that hold a text, whatever its case."""

    text: Annotated[str, Field(min_length=1, max_length=200)]
    where: Literal["repository", "patches", "turns", "tests"]


class Diff(Arguments):
    """How the files that two candidates leave behind differ."""

    one: Name
    other: Name


class RunCheck(Arguments):
    """Runs the task's tests, or a bash script of yours, on one candidate in a fresh sandbox without network. What is printed may
    be the candidate's own words. The check gets a number, to cite it by."""

    candidate: Name
    kind: Literal["tests", "script"]
    script: Annotated[str, Field(max_length=SCRIPT_CHARACTERS, description="For kind script: what bash runs.")] = ""


TOOLS: dict[str, type[Arguments]] = {
    "overview": Overview,
    "read_turns": ReadTurns,
    "read_patch": ReadPatch,
    "read_tests": ReadTests,
    "read_file": ReadFile,
    "search": Search,
    "diff": Diff,
    "run_check": RunCheck,
}


@cache
def declaration(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """A tool as OpenAI's chat API declares it."""
    description = " ".join((model.__doc__ or "").split())
    return {"type": "function", "function": {"name": name, "description": description, "parameters": model.model_json_schema()}}


def declarations() -> list[dict[str, Any]]:
    return [declaration(name, model) for name, model in TOOLS.items()]


def read_arguments(text: str, model: type[Arguments]) -> Arguments:
    """Raises ToolError."""
    try:
        return model.model_validate(json.loads(text or "{}"))
    except ValidationError as error:
        raise ToolError(f"the arguments do not fit: {'; '.join(_complaints(error, model))}") from error
    except (ValueError, RecursionError) as error:
        raise ToolError("the arguments are no JSON object") from error


async def use_tool(desk: Desk, name: str, arguments: str) -> str:
    """What the grader is shown. Raises ToolError, SandboxUnavailable."""
    if name not in TOOLS:
        raise ToolError(f"there is no such tool; there are {', '.join(TOOLS)}")
    given, fence = read_arguments(arguments, TOOLS[name]), Fence.drawn()
    if isinstance(given, RunCheck):
        return await _check(desk, fence, given)
    return await asyncio.to_thread(_look, desk, fence, given)


def _look(desk: Desk, fence: Fence, given: Arguments) -> str:
    match given:
        case Overview():
            return views.overview(desk, fence)
        case ReadTurns():
            return views.turns(desk, fence, given.candidate, given.first, given.count)
        case ReadPatch():
            return views.patch(desk, fence, given.candidate, given.first, given.count)
        case ReadTests():
            return views.tests(desk, fence, given.candidate)
        case ReadFile():
            return views.file(desk, fence, given.path, given.candidate, given.first, given.count)
        case Search():
            return views.search(desk, fence, given.text, given.where)
        case Diff():
            return views.difference(desk, fence, given.one, given.other)
    raise AssertionError(f"no view of {type(given).__name__}")


async def _check(desk: Desk, fence: Fence, given: RunCheck) -> str:
    trajectory, checks = desk.roster.find(given.candidate), _checks(desk, given)
    if given.kind == "tests":
        found = await checks.tests(desk.workspace.task, trajectory.patch)
    else:
        found = await checks.script(desk.workspace.task, trajectory.patch, given.script)
    record = {"kind": found.kind, "script": given.script, "outcome": found.outcome, "output": found.output}
    number = await asyncio.to_thread(desk.workspace.keep_check, trajectory.id, record)
    desk.run.append(number)
    heading = f"{check_citation(number)} on {given.candidate}, {given.kind}: {found.outcome}"
    return f"{heading}\n{fence.wrap(f'printed by the check on {given.candidate}', found.output)}"


def _checks(desk: Desk, given: RunCheck) -> Checks:
    if desk.checks is None:
        raise ToolError("no checks can be run here")
    if len(desk.run) >= desk.most_checks:
        raise ToolError(f"all {desk.most_checks} checks are used up")
    if given.kind == "script" and not given.script.strip():
        raise ToolError("script: must hold what bash is to run")
    return desk.checks


def _complaints(error: ValidationError, model: type[Arguments]) -> Sequence[str]:
    """One for each field, without what was given there."""
    places = [str(item["loc"][0]) if item["loc"] else "" for item in error.errors()]
    named = [place if place in model.model_fields else "an argument that there is not" for place in places]
    return [f"{place}: {item['msg'].lower()}" for place, item in zip(named, error.errors(), strict=True)]
