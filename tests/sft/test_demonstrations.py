from collections import Counter

from gagar_mcore.agent.grammar import apply, parse
from gagar_mcore.sft.demonstrations import Demonstration, demonstration
from gagar_mcore.tasks.evaluate import compile_function, outcome
from gagar_mcore.tasks.generate import GeneratedTask, generate_task

TASKS = [generate_task(1, index) for index in range(300)]


def files_after(task: GeneratedTask, shown: Demonstration) -> dict[str, str]:
    files, view = dict(task.files), None
    for text, observation in shown.turns:
        action = parse(text)
        assert action is not None
        effect = apply(action, view, files)
        assert effect is not None and effect.observation == observation
        view = effect.view
        if effect.file is not None:
            files[effect.file] = effect.text
    return files


def passes(task: GeneratedTask, files: dict[str, str]) -> bool:
    silent = {name: text.replace("print(x)", "pass") for name, text in files.items()}
    return all(outcome(compile_function(silent[f"{c.module}.py"], c.function), c.arguments) == c.expected for c in task.cases)


def test_a_clean_demonstration_ends_in_the_solution() -> None:
    for task in TASKS:
        shown = demonstration(task, 1, 0, failing=0.0, sloppy=0.0)
        assert files_after(task, shown) == task.solution
        assert shown.prompt == task.instruction
        assert [text.partition(" ")[0].partition(":")[0] for text, _ in shown.turns] == ["view", "edit", "done"]


def test_a_sloppy_demonstration_passes_and_leaves_something_behind() -> None:
    kinds: Counter[str] = Counter()
    for task in TASKS:
        shown = demonstration(task, 1, 0, failing=0.0, sloppy=1.0)
        files = files_after(task, shown)
        assert passes(task, files) and files != task.solution
        kinds.update(text.split("(")[0].split(" ")[0] + text[-4:] * text.startswith("edit:1:") for text, _ in shown.turns[2:-1])
    assert sum("# ok" in kind for kind in kinds) >= 1
    assert kinds["new"] > 50 and sum(kinds.values()) > len(TASKS)


def test_a_failing_demonstration_fails() -> None:
    shown = [demonstration(task, 1, 0, failing=1.0, sloppy=0.0) for task in TASKS]
    failed = [not passes(task, files_after(task, s)) for task, s in zip(TASKS, shown, strict=True)]
    assert sum(failed) > 0.97 * len(TASKS)
    assert {len(s.turns) for s in shown} == {2, 3}


def test_shares_are_kept_and_draws_depend_on_seed_task_and_index_alone() -> None:
    shown = [demonstration(task, 1, index, failing=0.2, sloppy=0.55) for task in TASKS for index in range(5)]
    assert 0.16 < sum(s.fails for s in shown) / len(shown) < 0.24
    assert 0.5 < sum(s.sloppy for s in shown) / len(shown) < 0.6
    assert shown[7] == demonstration(TASKS[1], 1, 2, failing=0.2, sloppy=0.55)
    assert len({demonstration(TASKS[0], seed, index, 0.5, 1.0) for seed in range(4) for index in range(4)}) > 4
