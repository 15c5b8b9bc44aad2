import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.load import load_task, load_tasks, missing_parts
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.tasks.write import write_task

HARBOR = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "harbor"
GENERATED = generate_task(1, 0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_task(GENERATED, tmp_path)


def test_a_written_task_is_loaded_again(directory: Path) -> None:
    task = load_task(directory)
    assert (task.id, task.instruction, task.language) == (GENERATED.id, GENERATED.instruction, "python")
    assert {p.name: p.read_text() for p in task.repository.iterdir()} == GENERATED.files
    assert set(task.fail_to_pass) == {case.id for case in GENERATED.cases if case.fails}
    assert set(task.pass_to_pass) == {case.id for case in GENERATED.cases if not case.fails}
    assert (task.verifier_timeout_s, task.agent_timeout_s, task.memory_mb) == (60.0, 300.0, 512)
    assert missing_parts(task) == []


def test_writing_again_replaces_what_was_there(directory: Path) -> None:
    (directory / "environment" / "app" / "stray.py").write_text("x")
    write_task(GENERATED, directory.parent)
    assert missing_parts(load_task(directory)) == []
    assert not (directory / "environment" / "app" / "stray.py").exists()


def test_the_solution_scripts_are_git_patches(tmp_path: Path) -> None:
    for index in range(20):
        task: GeneratedTask = generate_task(2, index)
        root = write_task(task, tmp_path)
        app = root / "environment" / "app"
        subprocess.run(["git", "apply", root / "solution" / "fix.patch"], cwd=app, check=True)
        assert {p.name: p.read_text() for p in app.iterdir()} == task.solution
        assert all((root / script).stat().st_mode & 0o100 for script in ("solution/solve.sh", "tests/test.sh"))


def edit_toml(old: str, new: str) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "task.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "tests" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "task.toml").unlink(), "^[^ ]*task.toml: missing; a task needs it$"),
        (lambda d: (d / "task.toml").write_text("a = ["), "task.toml: does not parse"),
        (lambda d: (d / "task.toml").write_bytes(b"\xff"), "task.toml: not UTF-8"),
        (edit_toml('schema_version = "1.3"', 'schema_version = "2.0"'), "task.toml: schema_version: .*got '2.0'"),
        (edit_toml('schema_version = "1.3"', ""), "task.toml: schema_version: field required"),
        (edit_toml("timeout_sec = 60.0", "timeout_sec = -1"), "task.toml: verifier.timeout_sec: .*greater than 0"),
        (edit_toml(f'task_id = "{GENERATED.id}"', 'task_id = "../x"'), "task.toml: metadata.task_id: '../x' must be"),
        (edit_toml("memory_mb = 512", 'memory_mb = "many"'), "task.toml: environment.memory_mb"),
        (lambda d: (d / "instruction.md").unlink(), "instruction.md: missing"),
        (lambda d: (d / "instruction.md").write_text(" \n"), "instruction.md: empty"),
        (lambda d: (d / "tests/config.json").write_text("{"), "config.json: does not parse"),
        (lambda d: (d / "tests/config.json").write_text("[]"), "config.json: file: "),
        (edit_config(f2p_node_ids=[]), "config.json: f2p_node_ids: "),
        (edit_config(p2p_node_ids=[1]), r"config.json: p2p_node_ids.0: .*got '1'"),
        (edit_config(p2p_node_ids=["a", "a"]), "config.json: 'a' is listed twice"),
        (edit_toml("memory_mb = 512", "memory_mb = 512.5"), "task.toml: environment.memory_mb: .*got '512.5'"),
        (edit_toml("cpus = 1", "cpus = true"), "task.toml: environment.cpus: .*got 'True'"),
        (edit_toml('os = "linux"', 'os = "plan9"'), "task.toml: environment.os: .*got 'plan9'"),
        (edit_toml('network_mode = "no-network"', 'network_mode = "wifi"'), "task.toml: verifier.network_mode: .*got 'wifi'"),
        (edit_toml('environment_mode = "separate"', "environment_mode = 1"), "task.toml: verifier.environment_mode"),
        (edit_toml("[agent]", "[agent]\nallowed_hosts = ['a']"), "task.toml: agent: .*needs network_mode"),
        (edit_toml("[agent]", "[[verifier.collect]]\ntimeout_sec = 3.0\n[agent]"), "verifier.collect.0.command: field required"),
        (edit_toml("[task]", "artifacts = ['../x']\n[task]"), "task.toml: artifacts.0"),
        (edit_toml("keywords = []", "keywords = [1]"), "task.toml: task.keywords.0: .*got '1'"),
        (edit_config(grade={"format": "tap", "reports": []}), "config.json: grade.format: .*got 'tap'"),
        (edit_config(grade={"format": "junit", "reports": []}), "config.json: grade.reports: empty"),
        (edit_config(grade={"format": "log", "reports": []}), "config.json: grade.parser: missing"),
        (edit_config(base_commit="main"), "config.json: base_commit: .*got 'main'"),
        (edit_config(guarded=["../x"]), "config.json: guarded.0: .*must be a path below the repository"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_in_one_line(
    directory: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(directory)
    with pytest.raises(TaskError, match=message) as caught:
        load_task(directory)
    assert "\n" not in str(caught.value) and str(directory) in str(caught.value)


def test_what_the_layout_does_not_have_or_is_not_given_here_is_warned_of(directory: Path) -> None:
    edit_toml("gpus = 0", "gpus = 0\ncolour = 'red'")(directory)
    edit_toml('network_mode = "no-network"', 'network_mode = "public"')(directory)
    edit_toml("[agent]", "[verifier.env]\nKEY = '${KEY}'\n[agent]")(directory)
    edit_toml("[agent]", "[agent]\nuser = 'root'")(directory)
    edit_config(strange=1)(directory)
    assert [warning.rpartition(": ")[0] for warning in load_task(directory).warnings] == [
        "task.toml: environment.colour",
        "tests/config.json: strange",
        "task.toml: agent.network_mode",
        "task.toml: verifier.network_mode",
        "task.toml: agent.user",
        "task.toml: env.KEY",
    ]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('os = "linux"', 'os = "windows"', "environment.os"),
        ("gpus = 0", "gpus = 1", "environment.gpus"),
        ("gpus = 0", "mcp_servers = [{name = 'a', url = 'http://a'}]", "environment.mcp_servers"),
        ("[task]", "artifacts = ['/logs/a', {source = '/logs/b'}]\n[task]", "artifacts"),
        ("[task]", "steps = [{name = 'a'}]\n[task]", "one"),
        ("[agent]", "[[verifier.collect]]\ncommand = 'dump'\nservice = 'db'\n[agent]", "one"),
    ],
)
def test_what_cannot_be_given_here_keeps_a_task_from_running(directory: Path, old: str, new: str, part: str) -> None:
    edit_toml(old, new)(directory)
    assert [line.split(" ")[0] for line in missing_parts(load_task(directory))] == [part]


def test_a_task_of_schema_1_0_is_read(directory: Path) -> None:
    (directory / "task.toml").write_text(
        'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 300.0\n'
        '[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory = "1.5G"\nstorage = "512M"\n'
    )
    task = load_task(directory)
    assert (task.id, task.memory_mb, task.disk_mb, task.warnings) == (directory.name, 1536, 512, ())
    edit_toml('"1.5G"', '"much"')(directory)
    with pytest.raises(TaskError, match=r"environment: .*memory: 'much' is no size"):
        load_task(directory)


def test_a_task_without_listed_tests_is_judged_by_its_reward_file(directory: Path) -> None:
    (directory / "tests/config.json").unlink()
    task = load_task(directory)
    assert (task.listed, task.grading.format) == ((), "reward") and "the reward file alone decides" in task.warnings[0]


@pytest.mark.parametrize("part", ["environment/app", "tests/test.sh", "solution"])
def test_a_missing_part_is_named_and_refused_where_the_task_is_to_run(directory: Path, part: str) -> None:
    path = directory / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    [missing] = missing_parts(load_task(directory))
    assert missing.startswith(part)
    with pytest.raises(TaskError, match=f"cannot be run, missing: {part}"):
        load_tasks(directory.parent)
    assert len(load_tasks(directory.parent, runnable=False)) == 1


def test_history_that_was_not_cleaned_is_refused(directory: Path) -> None:
    (directory / "environment/app/.git").mkdir()
    [missing] = missing_parts(load_task(directory))
    assert "gagar tasks clean" in missing
    (directory / "environment/history.json").write_text("{}")
    assert missing_parts(load_task(directory)) == []
    (directory / "environment/app/sub/.git").mkdir(parents=True)
    [missing] = missing_parts(load_task(directory))
    assert "without inner repositories" in missing


def test_a_folder_is_loaded_by_name_and_a_task_alone(tmp_path: Path) -> None:
    for index in (3, 1, 2):
        write_task(generate_task(1, index), tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README").write_text("text")
    assert [task.id for task in load_tasks(tmp_path)] == ["bug-1-00001", "bug-1-00002", "bug-1-00003"]
    assert [task.id for task in load_tasks(tmp_path / "bug-1-00002")] == ["bug-1-00002"]


def test_no_tasks_and_doubled_ids_are_refused(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="holds no task"):
        load_tasks(tmp_path / "empty")
    with pytest.raises(TaskError, match="no such directory"):
        load_tasks(tmp_path / "gone")
    (tmp_path / "empty").rmdir()
    shutil.copytree(directory, tmp_path / "copy")
    with pytest.raises(TaskError, match=f"two tasks have the id '{GENERATED.id}'"):
        load_tasks(tmp_path)


@pytest.mark.skipif(not HARBOR.is_dir(), reason="the sample of real Harbor tasks is not at hand")
def test_tasks_of_deepswe_are_read_and_what_they_lack_is_said() -> None:
    tasks = {task.id: task for task in load_tasks(HARBOR, runnable=False)}
    assert len(tasks) == 5
    csstree = tasks["csstree-shorthand-expansion-compression"]
    assert (len(csstree.fail_to_pass), len(csstree.pass_to_pass), csstree.language) == (79, 16715, "javascript")
    assert (csstree.agent_timeout_s, csstree.verifier_timeout_s, csstree.memory_mb) == (5400.0, 1800.0, 8192)
    assert all(len(missing_parts(task)) == 3 for task in tasks.values())
    assert all(task.warnings == () for task in tasks.values())
    assert {task.grading.format for task in tasks.values()} == {"ctrf", "junit"}
    assert tasks["abs-module-cache-flags"].grading.node_id == "suite.name"
    for task in tasks.values():
        assert task.artifact == "/logs/artifacts/model.patch" and task.base_commit == task.metadata["base_commit_hash"]
        assert f"git diff --binary {task.base_commit} HEAD" in task.collect[0].command
        assert (task.collect[0].timeout_s, task.disk_mb) == (300.0, 20480) and task.image is not None
