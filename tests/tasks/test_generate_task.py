import ast
import os
import subprocess
import sys

import pytest

from gagar_mcore.tasks.evaluate import compile_function, outcome
from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.templates import TEMPLATES

TRAINING = [generate_task(1, index) for index in range(400)]
HELDOUT = [generate_task(1, index, heldout=True) for index in range(100)]


def outcomes(task: GeneratedTask, files: dict[str, str]) -> dict[str, str | None]:
    return {c.id: outcome(compile_function(files[f"{c.module}.py"], c.function), c.arguments) for c in task.cases}


def test_the_cases_tell_the_bug_from_the_solution() -> None:
    for task in TRAINING[:100]:
        expected = {case.id: case.expected for case in task.cases}
        fails = {case.id for case in task.cases if case.fails}
        assert outcomes(task, task.solution) == expected
        assert fails and {name for name, result in outcomes(task, task.files).items() if result != expected[name]} == fails


def test_the_bug_is_one_line_of_its_function() -> None:
    for task in TRAINING:
        bug = task.bug
        before, after = (files[bug.file].split("\n") for files in (task.files, task.solution))
        assert [i for i, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b] == [bug.line]
        assert (before[bug.line - 1], after[bug.line - 1]) == (bug.buggy, bug.fixed)
        assert before[bug.line - bug.function_line].startswith(f"def {bug.function}(")
        assert {name: text for name, text in task.files.items() if name != bug.file}.items() <= task.solution.items()


def test_the_instruction_names_a_call_that_fails_and_the_files() -> None:
    for task in TRAINING:
        complaint, files = task.instruction.split("\n")
        file, _, rest = complaint.partition(": ")
        call, _, answers = rest.partition(" gives ")
        actual, _, expected = answers.rpartition(" not ")
        node = ast.parse(call, mode="eval").body
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        arguments = [ast.literal_eval(argument) for argument in node.args]
        assert (file, node.func.id) == (task.bug.file, task.bug.function)
        assert outcome(compile_function(task.files[file], node.func.id), arguments) == actual
        assert outcome(compile_function(task.solution[file], node.func.id), arguments) == expected
        assert files == f"files: {' '.join(task.files)}"


def test_repositories_have_the_intended_size() -> None:
    for task in TRAINING:
        functions = [line for text in task.files.values() for line in text.split("\n") if line.startswith("def ")]
        assert 1 <= len(task.files) <= 2 and 2 * len(task.files) <= len(functions) <= 3 * len(task.files)
        assert len(set(functions)) == len(functions)
        assert len({case.id for case in task.cases}) == len(task.cases) >= 3
    assert {task.bug.function for task in TRAINING} == set(TEMPLATES)
    assert len({task.fingerprint for task in TRAINING}) > 390


def test_equal_arguments_give_equal_tasks_in_another_process() -> None:
    code = (
        "from gagar_mcore.tasks.generate import generate_task as g; print([g(7, i, h) for i in range(3) for h in (False, True)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == repr([generate_task(7, i, heldout) for i in range(3) for heldout in (False, True)])


def test_seed_index_attempt_and_side_all_change_the_task() -> None:
    tasks = [
        generate_task(1, 0),
        generate_task(2, 0),
        generate_task(1, 1),
        generate_task(1, 0, True),
        generate_task(1, 0, attempt=1),
    ]
    assert len({task.fingerprint for task in tasks}) == 5
    assert len({task.id for task in tasks}) == 4 and tasks[4].id == tasks[0].id


def test_held_back_tasks_and_training_tasks_are_never_the_same() -> None:
    training = {task.fingerprint for task in TRAINING} | {generate_task(seed, 0).fingerprint for seed in range(200)}
    assert not training & {task.fingerprint for task in HELDOUT}

    def content(task: GeneratedTask) -> tuple[object, ...]:
        return (tuple(sorted(task.files.items())), tuple(sorted(task.solution.items())))

    assert not {content(task) for task in TRAINING} & {content(task) for task in HELDOUT}


def test_held_back_templates_are_only_seen_on_the_held_back_side() -> None:
    held = ("span", "find", "dot")
    for index in range(30):
        training = generate_task(1, index, heldout_templates=held)
        assert not any(f"def {name}(" in text for name in held for text in training.files.values())
        assert generate_task(1, index, heldout=True, heldout_templates=held).bug.function in held


@pytest.mark.parametrize("held", [["nonesuch"], sorted(TEMPLATES)[:20]])
def test_held_back_templates_that_leave_too_few_or_do_not_exist_are_refused(held: list[str]) -> None:
    for heldout in (False, True):
        with pytest.raises(ValueError, match="heldout_templates"):
            generate_task(1, 0, heldout, held)
