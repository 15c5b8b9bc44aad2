"""Tasks from a package's own code: a small one that lies here; `make test-packages` takes some from the index."""

import ast
import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from local_pool import with_pool

from gagar_mcore.tasks import commands
from gagar_mcore.tasks.check import check_tasks
from gagar_mcore.tasks.load import load_task, missing_parts
from gagar_mcore.tasks.package import make as making
from gagar_mcore.tasks.package.fetch import Package, fetch
from gagar_mcore.tasks.package.instruction import write_instruction
from gagar_mcore.tasks.package.seed import KINDS, draw_seed, seeds
from gagar_mcore.tasks.task import SITE, TaskError
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits

SOURCE = '''\
"""Small lists."""


def clamp(value, low, high):
    """Docstring with a < b."""
    if value is None:
        raise ValueError("no value")
    if value < low or value > high:
        return max(low, min(high, value))
    return value


def head(items, count=2, reverse=False):
    found = {}
    found["items"] = sorted(items[0:count], reverse=reverse)
    found.setdefault("step", len(items) - 1)
    return found["items"] if items else []


import gc

gc.get_referents(head)
'''
TESTS = """\
import pytest
import small


@pytest.mark.parametrize("value, expected", [(-1, 0), (0, 0), (3, 3), (10, 10), (12, 10)])
def test_clamp(value, expected):
    assert small.clamp(value, 0, 10) == expected


def test_clamp_needs_a_value():
    with pytest.raises(ValueError):
        small.clamp(None, 0, 1)


def test_head():
    assert small.head([3, 1, 2]) == [1, 3]


def test_head_of_nothing():
    assert small.head([]) == []


def test_docstring():
    assert small.__doc__ == "Small lists."
"""


def test_every_kind_of_bug_is_found_in_functions_alone_and_parses() -> None:
    for kind in KINDS:
        assert seeds(SOURCE, kind), kind
        for seed in seeds(SOURCE, kind):
            ast.parse(seed.text)
            lines = [(a, b) for a, b in zip(SOURCE.splitlines(), seed.text.splitlines(), strict=True) if a != b]
            assert len(lines) == 1 and seed.line == SOURCE.splitlines().index(lines[0][0]) + 1, (kind, seed)
            assert seed.function in ("clamp", "head") and "Docstring" not in lines[0][0] and "def " not in lines[0][0]


def test_the_same_draw_gives_the_same_bug_and_code_without_functions_none() -> None:
    assert draw_seed(SOURCE, Random(3)) == draw_seed(SOURCE, Random(3))
    assert draw_seed("x = 1 < 2\n", Random(3)) is None


def test_the_instruction_shows_the_shortest_failing_test_and_not_the_place_of_the_bug(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_small.py").write_text(TESTS)
    messages = {
        "tests/test_small.py::test_clamp[-1-0]": "E   long",
        "tests/test_small.py::test_head": ">  x\nE   assert [] == [1]\n",
    }
    text = write_instruction("small", "1.0", tmp_path, "tests", messages)
    assert text.startswith("small 1.0: head fails\n") and "assert small.head([3, 1, 2]) == [1, 3]\n" in text
    assert "\nassert [] == [1]\n" in text and "One more test fails with it." in text
    unknown = write_instruction("small", "1.0", tmp_path, "tests", {"tests/gone.py::test_x": ""})
    assert "# tests/gone.py::test_x" in unknown and "an error without a message" in unknown


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Package]:
    """In the place of `fetch`: what pip would bring of a package of one module."""

    def bring(requirement: str, root: Path, site: Path) -> Package:
        (root / "tests").mkdir(parents=True)
        (root / "small.py").write_text(SOURCE)
        (root / "tests/test_small.py").write_text(TESTS)
        site.mkdir(parents=True)
        installed = Path(pytest.__file__).parents[1]
        for name in ("_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            shutil.copytree(installed / name, site / name)
        shutil.copy(installed / "py.py", site)
        return Package("small", "1.0", root, "", ("small.py",), "tests", None, site, ("pytest==9",))

    return bring


def test_tasks_are_made_verified_and_hide_the_tests_that_fail(
    tmp_path: Path, small: Callable[..., Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "fetch", small)
    said = asyncio.run(commands.make(4, 1, tmp_path / "made", "small==1.0"))
    assert said.startswith(f"1 tasks in {tmp_path / 'made'}, each verified by 9 tests; 0 bugs thrown away")
    [root] = [path for path in (tmp_path / "made").iterdir() if not path.name.startswith(".")]
    task = load_task(root)
    assert missing_parts(task) == [] and task.warnings == ()
    assert len(task.listed) == 9 and task.fail_to_pass and task.pass_to_pass and set(task.inventory) == set(task.listed)
    assert not (task.repository / "tests/test_small.py").exists() and (task.tests / "suite/tests/test_small.py").exists()
    assert (task.repository / "small.py").read_text() != SOURCE
    assert task.reached == ("gc.get_referents",), "what honest code does is no sign of tampering"
    assert task.sandbox(Limits(), {}).read_only[SITE].resolve() == tmp_path / "made" / ".environment" / "site"
    assert json.loads((root / "solution/bug.json").read_text()) == {"kind": "guard", "function": "clamp", "line": 9}
    [checked] = with_pool(lambda pool: check_tasks(root, Verifier(pool, Limits(), 60.0)))
    assert str(checked) == f"{task.id}: ok, fails with the bug and passes with the solution"


def test_a_requirement_of_another_form_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    for requirement in ("marshmallow", "==1", "-r==x", "pytest==9.2.0"):
        with pytest.raises(TaskError, match="--from-package: "):
            fetch(requirement, tmp_path / "source", tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.packages
@pytest.mark.timeout(900)
@pytest.mark.parametrize("requirement", ["cachetools==8.0.2", "boltons==26.2.0", "marshmallow==4.4.0"])
def test_tasks_are_made_from_packages_of_the_index(tmp_path: Path, requirement: str) -> None:
    said = asyncio.run(commands.make(1, 1, tmp_path / "made", requirement))
    print(said, file=sys.stderr)
    [result] = with_pool(lambda pool: check_tasks(tmp_path / "made", Verifier(pool, making.LIMITS, making.RUN_S)))
    assert result.usable and result.ran, str(result)
