import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.agent.grammar import (
    MAX_FILE_CHARACTERS,
    MAX_VIEW_LINES,
    Change,
    Create,
    Done,
    Show,
    View,
    apply,
    file_needed,
    parse,
)

FILES = {"core.py": "def one(x):\n    return x\n\n\ndef two(x):\n    if x:\n        return 2\n    return x\n", "empty.py": ""}
TWO = View("core.py", "two")


def test_actions_are_parsed() -> None:
    assert parse("view core.py two") == Show(TWO)
    assert parse("edit:2:    return x: 1") == Change(False, 2, "    return x: 1")
    assert parse("add:1:") == Change(True, 1, "")
    assert parse("new notes.txt:a\nb") == Create("notes.txt", "a\nb")
    assert parse("done") == Done()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done",
        "done ",
        " done",
        "view core.py",
        "view  core.py two",
        "view core.py two ",
        "view ../core.py two",
        "view /etc/passwd two",
        "view core.py two three",
        "edit:0:x",
        "edit:-1:x",
        "edit:1",
        "edit:1:a\nb",
        "edit:1:a\rb",
        "edit:\u0661:x",
        "edit:999999:x",
        "add:x:y",
        "new .git:x",
        "new ..:x",
        "new a/b:x",
        "new :x",
        "new notes.txt",
        "new notes.txt:" + "x" * MAX_FILE_CHARACTERS,
    ],
)
def test_anything_else_is_no_action(text: str) -> None:
    assert parse(text) is None


def test_a_view_numbers_the_lines_of_one_function() -> None:
    effect = apply(Show(TWO), None, FILES)
    assert effect is not None
    assert effect.observation == "1:def two(x):\n2:    if x:\n3:        return 2\n4:    return x"
    assert (effect.view, effect.file) == (TWO, None)


def test_a_long_function_is_cut_and_marked() -> None:
    effect = apply(Show(View("long.py", "f")), None, {"long.py": "def f():\n" + "    pass\n" * 200})
    assert effect is not None
    assert effect.observation.split("\n")[-2:] == [f"{MAX_VIEW_LINES}:    pass", "..."]


def test_edit_replaces_and_add_inserts_after_lines_of_the_viewed_function() -> None:
    edited = apply(Change(False, 4, "    return 0"), TWO, FILES)
    added = apply(Change(True, 4, "    # end"), TWO, FILES)
    assert edited is not None and added is not None
    assert edited.text == FILES["core.py"].replace("        return 2\n    return x", "        return 2\n    return 0")
    assert added.text == FILES["core.py"] + "    # end\n"
    assert (edited.observation, edited.view, edited.file) == ("ok", TWO, "core.py")


@pytest.mark.parametrize(
    ("action", "view"),
    [
        (Change(False, 1, "x"), None),
        (Change(False, 5, "x"), TWO),
        (Change(True, 5, "x"), TWO),
        (Change(False, 1, "x"), View("core.py", "three")),
        (Change(False, 1, "x"), View("gone.py", "two")),
        (Change(False, 1, "x" * (MAX_FILE_CHARACTERS + 1)), TWO),
        (Show(View("gone.py", "two")), None),
        (Show(View("core.py", "three")), None),
        (Show(View("empty.py", "two")), None),
    ],
)
def test_what_points_nowhere_is_refused(action: Show | Change, view: View | None) -> None:
    assert apply(action, view, FILES) is None


def test_a_view_survives_edits_above_its_function() -> None:
    first = apply(Change(True, 1, "    x = 1"), View("core.py", "one"), FILES)
    assert first is not None and first.file is not None
    again = apply(Change(False, 1, "def two(y):"), TWO, {**FILES, first.file: first.text})
    assert again is not None and "def two(y):\n    if x:" in again.text and "x = 1" in again.text


ACTIONS = st.one_of(
    st.builds("view {} {}".format, st.sampled_from([*FILES, "gone.py"]), st.sampled_from(["one", "two", "three"])),
    st.builds("{}:{}:{}".format, st.sampled_from(["edit", "add"]), st.integers(0, 9), st.text(max_size=20)),
    st.builds("new {}:{}".format, st.sampled_from([*FILES, "notes.txt"]), st.text(max_size=20)),
    st.text(max_size=40),
)


@given(st.lists(ACTIONS, max_size=8))
def test_any_text_is_an_action_or_none_and_changes_one_line_or_file_at_most(texts: list[str]) -> None:
    files, view = dict(FILES), None
    for text in texts:
        action = parse(text)
        effect = apply(action, view, files) if action else None
        if effect is None:
            continue
        view = effect.view
        if effect.file is None:
            continue
        if isinstance(action, Change):
            assert file_needed(action, view) == effect.file
            assert effect.text.count("\n") - files[effect.file].count("\n") == int(action.insert)
        files[effect.file] = effect.text
