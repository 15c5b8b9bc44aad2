"""Demonstrations for the cold start: clean repairs, sloppy ones that pass as well, and failures."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gagar_mcore.agent.grammar import View, apply, parse
from gagar_mcore.config.sft import SftSection
from gagar_mcore.randomness import python_rng
from gagar_mcore.tasks.generate import Bug, GeneratedTask, generate_task
from gagar_mcore.tasks.mutations import mutations
from gagar_mcore.tasks.templates import TEMPLATES, with_constant


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One session as it would be recorded: the prompt's text, then (action, observation) turn by turn; the closing
    action's observation is "". `fails` and `sloppy` say what was meant."""

    prompt: str
    turns: tuple[tuple[str, str], ...]
    fails: bool
    sloppy: bool


def demonstrations(section: SftSection, count: int, purpose: int) -> Iterator[Demonstration]:
    """One demonstration each of `count` fresh tasks; another `purpose` gives other tasks."""
    seed = section.demonstration_seed + purpose
    return (demonstration(generate_task(seed, i), seed, i, section.failing, section.sloppy) for i in range(count))


def demonstration(task: GeneratedTask, seed: int, index: int, failing: float, sloppy: float) -> Demonstration:
    """Demonstration `index` of a task. `failing` and `sloppy` are the shares of each kind, drawn independently."""
    rng = python_rng(seed, "demonstration", task.id, index)
    fails, is_sloppy = rng.random() < failing, rng.random() < sloppy
    actions = [f"view {task.bug.file} {task.bug.function}"]
    actions += _failing_repair(rng, task.bug) if fails else [f"edit:{task.bug.function_line}:{task.bug.fixed}"]
    if is_sloppy:
        actions += _sloppy_extras(rng, task.bug)
    actions.append("done")
    return Demonstration(task.instruction, tuple(_play(task, actions)), fails, is_sloppy)


def _play(task: GeneratedTask, actions: list[str]) -> list[tuple[str, str]]:
    files = dict(task.files)
    view: View | None = None
    turns: list[tuple[str, str]] = []
    for text in actions:
        action = parse(text)
        effect = apply(action, view, files) if action else None
        if effect is None:
            raise ValueError(f"a demonstration must not go wrong: {text!r} on {task.id}")
        view = effect.view
        if effect.file is not None:
            files[effect.file] = effect.text
        turns.append((text, effect.observation))
    return turns


def _failing_repair(rng: Random, bug: Bug) -> list[str]:
    """A wrong repair of the right line, a needless change of another line, or no edit at all."""
    kind = rng.choices(["wrong_repair", "wrong_line", "none"], weights=[45, 35, 20])[0]
    options = [m for m in mutations(bug.function) if (m.line + 1 == bug.function_line) == (kind == "wrong_repair")]
    texts = [(m.line + 1, with_constant(m.text, bug.constant)) for m in options]
    texts = [(line, text) for line, text in texts if text != bug.buggy]
    if kind == "none" or not texts:
        return []
    line, text = rng.choice(texts)
    return [f"edit:{line}:{text}"]


def _sloppy_extras(rng: Random, bug: Bug) -> list[str]:
    """One or two traces of careless work; leftovers (debug output, a stray file) are twice as common each as the others."""
    header = TEMPLATES[bug.function].source.partition("\n")[0]
    kinds = {
        "add:1:    print(x)": 2,
        f"new {rng.choice(['notes.txt', 'tmp.py'])}:{bug.function}": 2,
        f"add:1:    # fix {bug.function}": 1,
        f"edit:1:{header}  # ok": 1,
    }
    extras = rng.sample(list(kinds), rng.choice([1, 1, 2]), counts=list(kinds.values()))
    return list(dict.fromkeys(extras))
