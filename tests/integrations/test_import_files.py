"""Files in, counts and refusals out; what a file says is never trusted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imported_samples import MINI_SWE_AGENT, OPENAI, SWE_AGENT

from gagar_mcore.integrations.imports.command import Counts, import_files
from gagar_mcore.integrations.imports.formats import export_data
from gagar_mcore.integrations.imports.read import Refusal, read_trajectories
from gagar_mcore.records.imported import ImportedTrajectory, read_imported

HELLO = '[{"role": "user", "content": "hi"}]'
HOSTILE = [
    (b"\xff", "not valid UTF-8 at byte 0"),
    (b"[", "not valid JSON: Expecting value"),
    (b"", "empty"),
    (b'[{"role": "user", "content": "a", "content": "b"}]', 'not valid JSON: an object gives "content" twice'),
    (b'[{"role": "user", "content": "", "cost": NaN}]', "not valid JSON: NaN is no number that can be kept"),
    (b'[{"role": "user", "content": "", "cost": 1e999}]', "not valid JSON: 1e999 is no number that can be kept"),
    (b'[{"role": "user", "content": "", "n": ' + b"9" * 5000 + b"}]", "not valid JSON: Exceeds the limit"),
    (b"[" * 200 + b"]" * 200, "nested deeper than 100 levels"),
    (b"[" * 100_000, "nested deeper than 100 levels"),
    (b"\x80\x04\x95.", "not valid UTF-8 at byte 0"),
    (b'"' + b"x" * 2000 + b'"', "larger than 1,000 bytes; allow more with --max-mb"),
]


def reasons(*sources: Path, **options: Any) -> list[str]:
    return [item.reason for item in read_trajectories(sources, **options) if isinstance(item, Refusal)]


def trajectories(*sources: Path, **options: Any) -> list[ImportedTrajectory]:
    return [item for item in read_trajectories(sources, **options) if isinstance(item, ImportedTrajectory)]


@pytest.mark.parametrize("name", ["a.traj.json", "a.jsonl"])
@pytest.mark.parametrize(("text", "reason"), HOSTILE, ids=lambda value: str(value)[:30])
def test_hostile_bytes_are_refused(tmp_path: Path, name: str, text: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    limit = 1000 if reason.startswith("larger") else 200_000
    (found,) = reasons(path, max_bytes=limit)
    assert found.startswith("not valid JSON" if (name, text) == ("a.traj.json", b"") else reason)


def test_a_line_that_is_refused_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    long = json.dumps([{"role": "user", "content": "x" * 500}])
    path.write_text(f"\ufeff{HELLO}\n\n{long}\n{{}}\n{HELLO}", encoding="utf-8")
    found = list(read_trajectories([path], max_bytes=100))
    assert [str(item) for item in found if isinstance(item, Refusal)] == [
        f"{path}: line 3: larger than 100 bytes; allow more with --max-mb",
        f"{path}: line 4: messages: required and missing",
    ]
    assert [item.source.line for item in found if isinstance(item, ImportedTrajectory)] == [1, 5]


def test_ids_are_of_the_content_and_unique(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{HELLO}\n{HELLO}\n[]\n{HELLO}\n")
    first, second, other, third = (record.id for record in trajectories(path))
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert other != first
    assert [record.id for record in trajectories(path)] == [first, second, other, third]


def test_folders_are_searched_for_names_that_tell_a_format(tmp_path: Path) -> None:
    (tmp_path / "run" / "b").mkdir(parents=True)
    (tmp_path / "run" / "b" / "x.traj").write_text(json.dumps(SWE_AGENT))
    (tmp_path / "run" / "a.traj.json").write_text(json.dumps(MINI_SWE_AGENT))
    (tmp_path / "run" / "patch.diff").write_text("no trajectory")
    assert [(r.format, r.task_id) for r in trajectories(tmp_path)] == [("mini-swe-agent", "django__django-1"), ("swe-agent", "x")]
    assert reasons(tmp_path) == []


def test_a_name_that_tells_nothing_needs_to_be_told(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(MINI_SWE_AGENT))
    assert reasons(path) == ["its name ends in none of .traj, .traj.json, .jsonl; say what it is with --format"]
    assert [record.format for record in trajectories(path, format="mini-swe-agent")] == ["mini-swe-agent"]


def test_what_is_no_file_is_refused_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.traj")
    (tmp_path / "link.traj").symlink_to("/etc/passwd")
    (tmp_path / "empty").mkdir()
    assert reasons(tmp_path) == ["a link in a folder; name its target itself", "not a regular file"]
    assert reasons(tmp_path / "empty", tmp_path / "absent.traj") == [
        "holds no file whose name ends in .traj, .traj.json, .jsonl",
        "no such file or directory",
    ]


def test_the_output_is_whole_or_absent(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    source.write_text("{}\n")
    assert import_files([source], out, "records", None, 10**6, str) == Counts(0, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]
    with pytest.raises(FileExistsError, match="exists already"):
        import_files([source], source, "records", None, 10**6, str)
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        import_files([source], tmp_path / "absent" / "out.jsonl", "records", None, 10**6, str)


def gagar_import(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gagar_mcore.cli", "import", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_counts_what_was_refused_and_says_why(tmp_path: Path) -> None:
    lines, odd, out = tmp_path / "a.jsonl", tmp_path / "b\n\x1b[31m.traj", tmp_path / "out.jsonl"
    lines.write_text("\n".join(map(json.dumps, OPENAI)))
    odd.write_text('{"trajectory": []}')
    done = gagar_import(lines, odd, "--out", out)
    assert (done.returncode, done.stdout) == (0, f"2 imported, 1 refused; {out}\n")
    assert done.stderr == f"{tmp_path}/b␊␛[31m.traj: history: required and missing\n"
    assert [export_data(record) for record in read_imported(out)] == OPENAI
    again = gagar_import(lines, "--out", out)
    assert (again.returncode, again.stderr) == (1, f"gagar: {out}: exists already; name a file that does not\n")


def test_the_command_fails_where_nothing_could_be_read(tmp_path: Path) -> None:
    done = gagar_import(tmp_path / "absent.traj", "--out", tmp_path / "out.jsonl")
    assert (done.returncode, done.stdout) == (1, "0 imported, 1 refused\n")
    assert done.stderr == f"{tmp_path}/absent.traj: no such file or directory\n"


def test_the_command_writes_chat_messages(tmp_path: Path) -> None:
    (tmp_path / "a.traj").write_text(json.dumps(SWE_AGENT))
    done = gagar_import(tmp_path, "--out", tmp_path / "out.jsonl", "--form", "messages")
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
