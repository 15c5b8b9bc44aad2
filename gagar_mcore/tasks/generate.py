"""Seeded bug-repair tasks: a repository of one or two small modules, one mutated line, one failing call as its symptom."""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from gagar_mcore.randomness import python_rng
from gagar_mcore.tasks.evaluate import compile_function, outcome
from gagar_mcore.tasks.mutations import mutations
from gagar_mcore.tasks.templates import TEMPLATES, Argument, Template, draw_argument, with_constant

MODULES = ("calc", "core", "ops", "text", "util")
SEPARATOR = "\n\n\n"

_HELDOUT_ONE_IN = 8
_MAX_DRAWS = 10_000
_MOST_FUNCTIONS = 6
_BUG_CASES = 10
_OTHER_CASES = 3
_SYMPTOM_CHARACTERS = 30


@dataclass(frozen=True, slots=True)
class Bug:
    """`line` counts from 1 in the file, `function_line` from 1 at the `def` line; `buggy` and `fixed` are that whole line."""

    file: str
    function: str
    constant: int
    line: int
    function_line: int
    buggy: str
    fixed: str


@dataclass(frozen=True, slots=True)
class Case:
    """One call and what the correct code answers: `repr` of the result. `fails` on the repository with the bug."""

    id: str
    module: str
    function: str
    arguments: tuple[Argument, ...]
    expected: str
    fails: bool


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """`files` is the repository with the bug in it; at least one case fails there and all pass on `solution`."""

    id: str
    instruction: str
    files: dict[str, str]
    bug: Bug
    cases: tuple[Case, ...]

    @property
    def solution(self) -> dict[str, str]:
        lines = self.files[self.bug.file].split("\n")
        lines[self.bug.line - 1] = self.bug.fixed
        return {**self.files, self.bug.file: "\n".join(lines)}

    @property
    def fingerprint(self) -> str:
        """Equal for tasks of equal code with an equal bug, whatever their symptom and cases."""
        content = repr((sorted(self.files.items()), self.bug.file, self.bug.line, self.bug.fixed))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Function:
    module: str
    template: Template
    constant: int

    @property
    def lines(self) -> list[str]:
        return with_constant(self.template.source, self.constant).split("\n")

    @property
    def call(self) -> Callable[..., Any]:
        return compile_function("\n".join(self.lines), self.template.name)


def generate_task(
    seed: int, index: int, heldout: bool = False, heldout_templates: Collection[str] = (), attempt: int = 0
) -> GeneratedTask:
    """Task `index` of `seed`; a pure function of its arguments.

    Held-back tasks and the others share no fingerprint, whatever their seeds. `heldout_templates` (names) are kept out of
    the others altogether, and every held-back task has its bug in one of them. `attempt` draws another task in its place.
    Raises ValueError where too few templates are left, or one does not exist."""
    held = set(heldout_templates)
    if not held <= set(TEMPLATES) or len(TEMPLATES) - len(held) < _MOST_FUNCTIONS:
        raise ValueError(
            f"heldout_templates: leave {_MOST_FUNCTIONS} of these and name no others: {', '.join(sorted(TEMPLATES))}"
        )
    names = sorted(TEMPLATES if heldout else set(TEMPLATES) - held)
    bugs = sorted(held) if heldout and held else names
    rng = python_rng(seed, "task", "heldout" if heldout else "training", index, attempt)
    task_id = f"{'heldout' if heldout else 'bug'}-{seed}-{index:05d}"
    for _ in range(_MAX_DRAWS):
        task = _draw(rng, task_id, names, bugs)
        if task is not None and _is_heldout(task) == heldout:
            return task
    raise RuntimeError(f"no usable task in {_MAX_DRAWS} draws for seed {seed}, index {index}")


def _is_heldout(task: GeneratedTask) -> bool:
    return int(task.fingerprint[:8], 16) % _HELDOUT_ONE_IN == 0


def _draw(rng: Random, task_id: str, names: list[str], bugs: list[str]) -> GeneratedTask | None:
    """One try; None where the mutation does not show, or shows as an endless loop."""
    broken, functions = _draw_functions(rng, names, rng.choice(bugs))
    mutation = rng.choice(mutations(broken.template.name))
    buggy = broken.lines
    buggy[mutation.line] = with_constant(mutation.text, broken.constant)
    symptom = _draw_symptom(rng, broken, compile_function("\n".join(buggy), broken.template.name))
    if symptom is None:
        return None
    complaint, cases = symptom
    for function in functions:
        if function is not broken:
            cases += _draw_cases(rng, function, function.call, _OTHER_CASES)
    files = _assemble(functions, broken, buggy)
    file = f"{broken.module}.py"
    line = files[file].split("\n").index(buggy[0]) + mutation.line + 1
    bug = Bug(
        file, broken.template.name, broken.constant, line, mutation.line + 1, buggy[mutation.line], broken.lines[mutation.line]
    )
    instruction = f"{file}: {complaint}\nfiles: {' '.join(files)}"
    return GeneratedTask(task_id, instruction, files, bug, tuple(cases))


def _draw_functions(rng: Random, names: list[str], bug: str) -> tuple[_Function, list[_Function]]:
    """Functions of one or two modules, two or three each, no name twice, and which of them is to be broken."""
    modules = rng.sample(MODULES, rng.choice([1, 1, 2]))
    slots = [module for module in modules for _ in range(rng.choice([2, 3]))]
    chosen = [bug, *rng.sample([n for n in names if n != bug], len(slots) - 1)]
    rng.shuffle(chosen)
    functions = [_Function(m, TEMPLATES[n], rng.randint(2, 9)) for m, n in zip(slots, chosen, strict=True)]
    return functions[chosen.index(bug)], functions


def _draw_symptom(rng: Random, broken: _Function, buggy: Callable[..., Any]) -> tuple[str, list[Case]] | None:
    """The complaint about the first short call that fails, and the cases of the broken function."""
    cases = _draw_cases(rng, broken, buggy, _BUG_CASES)
    for case in cases:
        shown = ", ".join(map(repr, case.arguments))
        if case.fails and len(shown) < _SYMPTOM_CHARACTERS:
            return f"{case.function}({shown}) gives {outcome(buggy, case.arguments)} not {case.expected}", cases
    return None


def _draw_cases(rng: Random, function: _Function, present: Callable[..., Any], count: int) -> list[Case]:
    """Different calls on which the correct function returns; `present` is what stands in the repository. Empty where
    `present` loops without end."""
    cases: dict[str, Case] = {}
    for _ in range(count):
        arguments = tuple(draw_argument(kind, rng) for kind in function.template.kinds)
        expected, actual = outcome(function.call, arguments), outcome(present, arguments)
        if actual is None:
            return []
        if expected is not None and not expected.startswith("err "):
            name = function.template.name
            case_id = f"{function.module}.{name}[{len(cases)}]"
            cases.setdefault(repr(arguments), Case(case_id, function.module, name, arguments, expected, actual != expected))
    return list(cases.values())


def _assemble(functions: list[_Function], broken: _Function, buggy: list[str]) -> dict[str, str]:
    sources: dict[str, list[str]] = {}
    for function in functions:
        lines = buggy if function is broken else function.lines
        sources.setdefault(f"{function.module}.py", []).append("\n".join(lines))
    return {file: SEPARATOR.join(parts) + "\n" for file, parts in sources.items()}
