import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from gagar_mcore.tasks.check import check_tasks
from gagar_mcore.tasks.commands import import_records
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.swe import read_records, reverse
from gagar_mcore.tasks.swe_write import directives, guarded, write_swe_task
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool

SWE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "swe"
needs_samples = pytest.mark.skipif(not SWE.is_dir(), reason="samples of SWE-bench and SWE-smith are not at hand")

RECORD = {
    "instance_id": "pallets__flask-1",
    "repo": "pallets/flask",
    "base_commit": "0" * 40,
    "version": "2.0",
    "problem_statement": "add subtracts",
    "patch": "diff --git a/adding.py b/adding.py\n--- a/adding.py\n+++ b/adding.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n"
    "-    return a - b\n+    return a + b\n",
    "test_patch": "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/tests/test_new.py\n"
    "@@ -0,0 +1,4 @@\n+import adding\n+\n+def test_add():\n+    assert adding.add(1, 2) == 3\n"
    "diff --git a/tests/data.json b/tests/data.json\nnew file mode 100644\n--- /dev/null\n+++ b/tests/data.json\n"
    "@@ -0,0 +1 @@\n+1\n",
    "FAIL_TO_PASS": '["tests/test_new.py::test_add"]',
    "PASS_TO_PASS": ["tests/test_old.py::test_old"],
}


def stored(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_lists_are_read_however_they_are_stored(tmp_path: Path) -> None:
    pro = {**RECORD, "instance_id": "pro", "FAIL_TO_PASS": "['a::b']", "selected_test_files_to_run": '["a"]'}
    plain, other = read_records(stored(tmp_path / "r.jsonl", RECORD, pro))
    assert plain.fail_to_pass == ["tests/test_new.py::test_add"] and other.fail_to_pass == ["a::b"]
    assert (plain.pro, other.pro, other.lacks) == (False, True, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance_id": "../x"}, "record 1: instance_id: .*got '../x'"),
        ({"problem_statement": ""}, "record 1: problem_statement"),
        ({"FAIL_TO_PASS": "os.system('x')"}, "record 1: FAIL_TO_PASS: .*a list of test ids"),
        ({"PASS_TO_PASS": [1]}, "record 1: PASS_TO_PASS.0: .*got '1'"),
        ({"base_commit": "main"}, "record 1: base_commit"),
    ],
)
def test_a_record_with_a_fault_is_refused_in_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError, match=message) as refused:
        read_records(stored(tmp_path / "r.json", {**RECORD, **change}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "message"), [("", "holds no record"), ("{", "line 1: no JSON"), ("[3]", "record 1")])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(TaskError, match=message):
        read_records(tmp_path / "r")
    with pytest.raises(TaskError, match="two records"):
        read_records(stored(tmp_path / "d", RECORD, RECORD))


def test_a_patch_turned_round_undoes_it(tmp_path: Path) -> None:
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return a - b\n")
    for patch in (RECORD["patch"], reverse(str(RECORD["patch"]))):
        subprocess.run(["git", "apply", "-"], input=str(patch), text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "adding.py").read_text() == "def add(a, b):\n    return a - b\n"
    with pytest.raises(ValueError, match="only changes of text"):
        reverse(str(RECORD["test_patch"]))


def test_a_record_becomes_a_task_that_runs_and_is_read_by_swe_benchs_parser(tmp_path: Path) -> None:
    """pytest is that of this environment, in the place of the image's."""
    [record] = read_records(stored(tmp_path / "r.json", RECORD))
    root = write_swe_task(record, tmp_path)
    app = root / "environment" / "app"
    (app / "tests").mkdir(parents=True)
    (app / "adding.py").write_text("def add(a, b):\n    return a - b\n")
    (app / "tests/test_old.py").write_text("def test_old():\n    pass\n")
    (root / "environment" / "site").symlink_to(Path(pytest.__file__).parents[1])
    toml = (root / "task.toml").read_text()
    (root / "task.toml").write_text(
        toml + '[environment.env]\nPYTHONPATH = "/opt/site-packages:/testbed"\nPYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"\n'
    )
    script = (root / "tests/test.sh").read_text()
    assert script.count("pytest -rA tests/test_new.py\n") == 1, "JSON is data, not a test"
    (root / "tests/test.sh").write_text(
        script.replace("pytest -rA", "1>&2 python3 -B -m pytest -p no:cacheprovider -p no:xdist -rA tests/test_old.py")
    )

    async def check() -> str:
        pool = LocalPool()
        try:
            [result] = await check_tasks(root, Verifier(pool, Limits(memory_mb=1024), 60.0))
            return str(result)
        finally:
            await pool.close()

    assert asyncio.run(check()) == "pallets__flask-1: ok, fails with the bug and passes with the solution"


def test_files_of_the_tests_and_a_runner_that_the_repository_brings_are_guarded(tmp_path: Path) -> None:
    [record] = read_records(stored(tmp_path / "r.json", RECORD))
    assert load_task(write_swe_task(record, tmp_path)).guarded == ("tests/test_new.py", "tests/data.json")
    sympy = record.model_copy(update={"repo": "sympy/sympy"})
    assert guarded(sympy, record.patch) == [
        *("tests/test_new.py", "tests/data.json", "bin/test", "sympy/testing/runtests.py", "sympy/utilities/runtests.py")
    ]
    assert "bin/test" not in guarded(sympy, "diff --git a/bin/test b/bin/test\n")


def test_what_the_record_lacks_is_named(tmp_path: Path) -> None:
    short = stored(tmp_path / "r.json", {"task_name": "a__b-1", "prompt": "It fails."})
    with pytest.raises(TaskError, match="a__b-1: has no repo, base_commit, patch, fail_to_pass"):
        import_records(short, tmp_path / "made")
    unknown = stored(tmp_path / "u.json", {**RECORD, "version": "99"})
    with pytest.raises(TaskError, match="does not know how pallets/flask 99 is tested"):
        import_records(unknown, tmp_path / "made")


@needs_samples
def test_records_of_the_data_sets_become_tasks(tmp_path: Path) -> None:
    for name, count in (("swebench-lite-5.json", 5), ("swesmith-pandas-53652.json", 1)):
        assert import_records(SWE / name, tmp_path / name).startswith(f"{count} tasks")
    django = load_task(tmp_path / "swebench-lite-5.json" / "django__django-16255")
    assert (django.grading.format, django.grading.parser, django.workdir) == ("log", "django/django", "/testbed")
    assert "runtests.py --verbosity 2" in (django.tests / "test.sh").read_text()
    assert "sitemaps_tests.test_http sitemaps_tests.urls.http\n" in (django.tests / "test.sh").read_text()
    [smith] = [load_task(path) for path in (tmp_path / "swesmith-pandas-53652.json").iterdir()]
    assert "tests/indexing/test_datetime.py\n" in (smith.tests / "test.sh").read_text()
    assert "+        if lib.is_np_dtype" in (smith.directory / "solution/fix.patch").read_text()
    assert len(read_records(SWE / "swebench-verified-10.jsonl")) == 10


def test_tests_of_pro_run_by_their_files(tmp_path: Path) -> None:
    go = {**RECORD, "instance_id": "go", "selected_test_files_to_run": ["lib/a_test.go", "lib/b_test.go"], "repo_language": "go"}
    js = {**go, "instance_id": "js", "repo_language": "js"}
    python = {**go, "instance_id": "py", "repo_language": "python", "selected_test_files_to_run": ["tests/test_a.py"]}
    records = read_records(stored(tmp_path / "r.json", go, js, python))
    assert directives(records[0]).command == "go test -v ./lib" and directives(records[0]).parser == "parse_log_gotest"
    assert load_task(write_swe_task(records[2], tmp_path)).workdir == "/app"
    assert directives(records[2]).command.endswith("pytest -rA --tb=no -p no:cacheprovider tests/test_a.py")
    with pytest.raises(TaskError, match="tests in js are run by a script"):
        directives(records[1])
