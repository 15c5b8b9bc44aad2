import json
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.tasks.question_file import load_questions
from gagar_mcore.tasks.questions import generate_question
from gagar_mcore.tasks.source import check_sources, loaded_tasks
from gagar_mcore.tasks.task import TaskError

MIX = "tasks={mix: [{name: code, weight: 3, count: 8, heldout_count: 2}, {name: sums, source: questions, heldout_count: 2%s}]}"


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_generated_questions_follow_from_the_seed_and_are_never_the_held_back_ones() -> None:
    training = [generate_question(seed, index) for seed in (1, 2) for index in range(120)]
    heldout = [generate_question(9, index, heldout=True) for index in range(120)]
    assert training == [generate_question(seed, index) for seed in (1, 2) for index in range(120)]
    assert not {q.instruction for q in training} & {q.instruction for q in heldout}
    assert len({q.id for q in training + heldout}) == 360
    assert all(q.accepted for q in training)
    assert {q.check is None for q in training} == {True, False}


def test_a_file_of_questions(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "even.py").write_text("")
    lines = [
        {"question": "1 + 1?", "answer": ["2", "two"]},
        {"id": "even", "question": "An even number?", "check": "even.py", "data": {"a": 1}},
    ]
    first, second = load_questions(write(tmp_path / "q.jsonl", *lines))
    assert (first.id, first.accepted, first.check) == ("line-1", ("2", "two"), None)
    assert (second.id, second.accepted, second.check) == ("even", (), tmp_path / "checks" / "even.py")
    assert json.loads(second.data) == {"a": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question": "a"}, r"q.jsonl: line 2: line: value error, needs an answer, or a check"),
        ({"question": "", "answer": "b"}, r"line 2: question: string should have at least 1 character"),
        ({"question": "a", "answer": 5}, r"line 2: answer: must be a text, or a list of texts, none of them empty; correct it"),
        ({"question": "a", "anwser": "5"}, r"line 2: anwser: extra inputs are not permitted"),
        ({"question": "a", "check": "../../etc/x.py"}, r"line 2: check: string should match pattern"),
        ({"question": "a", "check": "none.py"}, r"line 2: check: no file .*none.py; put the program there"),
        ({"question": "a", "answer": "b", "id": "x"}, r"questions 1 and 2 have the id 'x'"),
        ({"question": "a", "answer": "b", "id": "../x"}, r"line 2: id"),
        ([1], r"line 2: line: input should be"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = write(tmp_path / "q.jsonl", {"id": "x", "question": "a", "answer": "b"}, line)
    with pytest.raises(TaskError, match=said):
        load_questions(path)


def test_a_file_without_questions_or_none_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no question"):
        load_questions(write(tmp_path / "q.jsonl"))
    with pytest.raises(TaskError, match=r"none.jsonl: cannot be read"):
        load_questions(tmp_path / "none.jsonl")


def test_loaded_questions_are_split_as_other_tasks_are(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", *({"id": f"q{i}", "question": "a", "answer": "b"} for i in (3, 1, 2)))
    section = load_recipe("tiny", [f"tasks={{source: questions, path: '{path}', heldout_count: 1}}"]).tasks
    check_sources(section)
    assert [task.id for task in loaded_tasks(section)] == ["q1", "q2", "q3"]
    with pytest.raises(TaskError, match="heldout_count 3 leaves none of 3 tasks"):
        loaded_tasks(section.model_copy(update={"heldout_count": 3}))


def test_a_mix_in_a_recipe() -> None:
    tasks = load_recipe("tiny", [MIX % ", quota: 2, temperature: 0.7, max_turns: 1"]).tasks
    assert [(s.name, s.weight, s.quota) for s in tasks.mix] == [("code", 3.0, None), ("sums", 1.0, 2)]
    assert tasks.heldout == 4


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([MIX % "", "tasks.count=9"], "tasks.count: has no effect beside tasks.mix"),
        ([MIX % ", max_context: 501"], "tasks.mix.sums.max_context: exceeds rollout.max_context"),
        ([MIX % ", max_new_tokens: 500"], "tasks.mix.sums.max_new_tokens: 500 leaves no room in its max_context 500"),
        ([MIX % ", max_context: 32"], "tasks.mix.sums.max_new_tokens: 32 leaves no room in its max_context 32"),
        ([MIX % ", weight: 0"], "tasks.mix.1.weight"),
        ([MIX.replace("sums", "code") % ""], "tasks.mix: 2 sources are called code"),
        ([MIX.replace("weight: 3", "path: x") % ""], "tasks.mix.code.path: has no effect where tasks are generated"),
        (["tasks={source: harbor}"], "tasks.path: required where tasks are loaded"),
    ],
)
def test_a_mix_that_contradicts_itself_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load_recipe("tiny", overrides)
