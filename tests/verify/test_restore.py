"""What is put back before tests run. The program runs inside sandboxes; here its parts are called as they are."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gagar_mcore.verify.restore import INSIDE


@pytest.fixture(scope="module")
def inside() -> ModuleType:
    spec = importlib.util.spec_from_file_location("restore_inside", INSIDE / "restore.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(
    inside: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, list[str]]]:
    """Restores `work` from `base`, both below `tmp_path`."""

    def restore(language: str = "python", *more: str) -> dict[str, list[str]]:
        monkeypatch.setattr("sys.argv", ["restore.py", str(tmp_path / "base"), str(tmp_path / "work"), language, *more])
        inside.main()
        said: dict[str, list[str]] = json.loads(capsys.readouterr().out)
        return said

    return restore


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


GUARDED = [
    *("conftest.py", "a/b/conftest.py", "sitecustomize.py", "x.pth", "pyproject.toml", "tox.ini", ".bashrc", "a/pytest.ini"),
    *("tests/helper.py", "pkg/tests/data.bin", "test_a.py", "src/a_test.go", "lib/a.test.ts", "a.spec.mjs", "src/FooTest.java"),
    *("node_modules/mocha/bin", "venv/bin/python", "__pycache__/a.cpython-311.pyc", "a/__snapshots__/b.snap", "spec/a.rb"),
    *("jest.config.js", ".mocharc.yml", "test/index.js", "sub/.git/config", "a_spec.rb", ".github/workflows/ci.yml"),
    *("evil.egg-info/entry_points.txt", "x-1.0.dist-info/METADATA", "vite.config.ts", ".babelrc.json", "jest.setup.js"),
    *("go.work", "sub/go.work", "bunfig.toml", ".nvmrc"),
]
FREE = [
    *("adding.py", "src/adding.py", "pkg/testing.py", "django/test/client.py", "latest.py", "contest.py", "docs/test.md"),
    *("numpy/testing/utils.py", "attest/core.go", "lib/index.js", "package.json", "Makefile", "src/Testable.java"),
    *("vendor/x.py", "invite.config.py"),
]


@pytest.mark.parametrize("path", GUARDED)
def test_tests_settings_and_environments_are_guarded(inside: ModuleType, path: str) -> None:
    assert inside.guarded(path)


@pytest.mark.parametrize("path", FREE)
def test_code_that_only_sounds_like_tests_is_not(inside: ModuleType, path: str) -> None:
    assert not inside.guarded(path)


def test_what_was_changed_deleted_or_added_is_as_in_the_task_again(
    run: Callable[..., dict[str, list[str]]], tmp_path: Path
) -> None:
    base, work = tmp_path / "base", tmp_path / "work"
    write(base, tests__test_a="old", tests__b="kept", code="old")
    write(work, tests__test_a="new", tests__evil="x", code="new")
    said = run()
    assert said == {"restored": ["tests/b", "tests/test_a"], "removed": ["tests/evil"]}
    assert sorted(path.name for path in (work / "tests").iterdir()) == ["b", "test_a"]
    assert (work / "tests/test_a").read_text() == "old" and (work / "code").read_text() == "new"


def test_links_in_the_way_are_replaced_and_not_followed(run: Callable[..., dict[str, list[str]]], tmp_path: Path) -> None:
    base, work, away = tmp_path / "base", tmp_path / "work", tmp_path / "away"
    write(base, pkg__tests__test_a="old", tests__test_b="old")
    write(away, test_b="planted", tests__test_a="planted")
    work.mkdir()
    (work / "tests").symlink_to(away)
    (work / "pkg").symlink_to(away)
    run()
    assert not (work / "tests").is_symlink() and (work / "tests/test_b").read_text() == "old"
    assert not (work / "pkg").is_symlink() and (work / "pkg/tests/test_a").read_text() == "old"
    assert (away / "test_b").read_text() == "planted" and (away / "tests/test_a").read_text() == "planted"


def test_modules_in_the_place_of_others_are_removed_unless_the_task_has_them(
    run: Callable[..., dict[str, list[str]]], tmp_path: Path
) -> None:
    base, work = tmp_path / "base", tmp_path / "work"
    files = {"types.py": "task's"}
    write(base, **files)
    planted = {"json.py": "", "src__random__init.py": "", "pkg__random.py": "", "docs__random.md": ""}
    write(work, **files, **planted)
    (work / "email").mkdir()
    (work / "code").mkdir()
    (work / "code/__init__.py").write_text("")
    (base / "locale").mkdir()
    (work / "locale").mkdir()
    (work / "locale/__init__.py").write_text("")
    (work / "random").symlink_to("pkg")
    assert run("Python")["removed"] == ["code/__init__.py", "json.py", "locale/__init__.py", "random"]
    assert run("javascript") == {"restored": [], "removed": []}


def test_a_root_of_sources_that_became_a_link_is_none(run: Callable[..., dict[str, list[str]]], tmp_path: Path) -> None:
    write(tmp_path / "base", src__pkg__a="old")
    write(tmp_path / "work", hidden__json="planted")
    (tmp_path / "work/src").symlink_to("hidden")
    assert run()["restored"] == ["src"]
    assert list((tmp_path / "work/src").iterdir()) == []


def test_modules_of_the_environment_are_not_taken_from_the_patch(
    inside: ModuleType, run: Callable[..., dict[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "env", requests____init="", six="", examples="")
    monkeypatch.setattr(inside, "ENVIRONMENTS", (str(tmp_path / "e*"),))
    (tmp_path / "base").mkdir()
    for name in ("six.py", "src/requests/__init__.py", "examples.py", "fresh.py", "docs/six.py"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("")
    assert run()["removed"] == ["six.py", "src/requests/__init__.py"]


def test_what_the_task_names_is_its_own(run: Callable[..., dict[str, list[str]]], tmp_path: Path) -> None:
    write(tmp_path / "base", bin__test="old", bin__tool="old")
    write(tmp_path / "work", bin__test="new", bin__tool="new", runner__x="new")
    assert run("python", "bin/test", "runner") == {"restored": ["bin/test"], "removed": ["runner", "runner/x"][:1]}


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        ("module a\n", "module a\nreplace b => ./fake\n", ["go.mod"]),
        ("module a\n", "module a\ngo 1.22\n", []),
        (None, "module a\nreplace b => ./fake\n", ["go.mod"]),
        (None, "module a\n", []),
    ],
)
def test_modules_of_go_come_from_where_the_task_takes_them(
    run: Callable[..., dict[str, list[str]]], tmp_path: Path, before: str | None, after: str, done: list[str]
) -> None:
    for folder, text in (("base", before), ("work", after)):
        (tmp_path / folder).mkdir()
        if text is not None:
            (tmp_path / folder / "go.mod").write_text(text)
    (tmp_path / "work/vendor").mkdir()
    assert run("go") == {"restored": done, "removed": ["vendor"]}
    kept = tmp_path / "work/go.mod"
    assert (kept.read_text() if kept.exists() else None) == (before if done else after)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ('{"name": "b", "scripts": {"test": "exit 0"}}', {"name": "b", "scripts": {"test": "mocha"}}),
        ('{"name": "b", "jest": {"bail": 0}}', {"name": "b", "scripts": {"test": "mocha"}}),
        ("{", {"name": "a", "scripts": {"test": "mocha"}}),
        ("[]", {"name": "a", "scripts": {"test": "mocha"}}),
    ],
)
def test_how_javascript_is_tested_is_the_tasks(
    run: Callable[..., dict[str, list[str]]], tmp_path: Path, after: str, expected: object
) -> None:
    for folder, text in (("base", '{"name": "a", "scripts": {"test": "mocha"}}'), ("work", after)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "package.json").write_text(text)
    assert run("javascript") == {"restored": ["package.json"], "removed": []}
    assert json.loads((tmp_path / "work/package.json").read_text()) == expected
