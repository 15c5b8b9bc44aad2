import asyncio
import json
from pathlib import Path

import pytest

from gagar_mcore.tasks import make as making
from gagar_mcore.tasks.check import CheckResult, check_tasks, closing_line
from gagar_mcore.tasks.commands import check, make
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.make import MadeTasks, make_tasks
from gagar_mcore.tasks.task import TaskError
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, LocalPool


def checked(path: Path, run: bool = True) -> list[CheckResult]:
    async def body() -> list[CheckResult]:
        pool = LocalPool()
        try:
            return await check_tasks(path, Verifier(pool, Limits(), 30.0) if run else None)
        finally:
            await pool.close()

    return asyncio.run(body())


def test_made_tasks_are_verified_and_deterministic(tmp_path: Path) -> None:
    said = asyncio.run(make(5, 3, tmp_path / "made"))
    assert said == f"3 tasks in {tmp_path / 'made'}, each verified; 0 drawn again"
    for index in range(3):
        write_task(generate_task(5, index), tmp_path / "again")
    names = sorted(p.relative_to(tmp_path / "made") for p in (tmp_path / "made").rglob("*") if p.is_file())
    assert len(names) > 20
    assert all((tmp_path / "made" / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)
    results = checked(tmp_path / "made")
    assert [str(r) for r in results] == [f"bug-5-0000{i}: ok, fails with the bug and passes with the solution" for i in range(3)]


def test_making_refuses_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TaskError, match="no empty folder"):
        asyncio.run(make(5, 1, tmp_path))


def test_a_draw_that_fails_its_check_is_drawn_again_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = write_task

    def spoil_first_draw(generated: object, directory: Path) -> Path:
        root = real(generated, directory)  # type: ignore[arg-type]
        if generated == generate_task(5, 1):
            (root / "solution" / "fix.patch").write_text("")
        return root

    async def body(count: int) -> MadeTasks:
        pool = LocalPool()
        try:
            return await make_tasks(5, count, tmp_path, pool)
        finally:
            await pool.close()

    monkeypatch.setattr(making, "write_task", spoil_first_draw)
    made = asyncio.run(body(2))
    assert made.redrawn == 1
    assert made.tasks[1].instruction == generate_task(5, 1, attempt=1).instruction


def test_check_says_what_is_wrong_with_each_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [write_task(generate_task(1, index), tmp_path) for index in range(5)]
    (roots[1] / "solution" / "fix.patch").write_text("nonsense")
    config = json.loads((roots[2] / "tests" / "config.json").read_text())
    config["f2p_node_ids"].append(config["p2p_node_ids"].pop())
    (roots[2] / "tests" / "config.json").write_text(json.dumps(config))
    (roots[3] / "task.toml").unlink()
    (roots[4] / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    results = checked(tmp_path)
    assert [result.usable for result in results] == [True, False, False, False, False]
    assert "on the solution: the patch does not apply" in str(results[1])
    assert "is in f2p_node_ids and passes" in str(results[2])
    assert "task.toml: missing" in str(results[3])
    assert "on the untouched repository: no usable report" in str(results[4])
    assert all("\n" not in str(result) for result in results)
    assert closing_line(results) == "1 of 5 tasks usable"

    assert not asyncio.run(check(tmp_path, run=False))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6 and printed[-1] == "4 of 5 tasks usable"


def test_a_solution_that_passes_nothing_new_is_found(tmp_path: Path) -> None:
    root = write_task(generate_task(1, 0), tmp_path)
    (root / "solution" / "fix.patch").write_text(
        "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
    )
    [result] = checked(tmp_path)
    assert "on the solution: core.common[0] should pass and is failed" in str(result)


def test_missing_parts_make_a_task_unusable_only_where_it_is_to_run(tmp_path: Path) -> None:
    root = write_task(generate_task(1, 0), tmp_path)
    (root / "tests" / "test.sh").unlink()
    [read], [run] = checked(tmp_path, run=False), checked(tmp_path)
    assert read.usable and str(read).startswith("bug-1-00000: valid; cannot be run here, missing: tests/test.sh")
    assert not run.usable and "unusable: cannot be run, missing: tests/test.sh" in str(run)
