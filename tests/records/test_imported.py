import json
from pathlib import Path

import pytest

from gagar_mcore.records.imported import ImportedTrajectory, Message, Source, read_imported
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import RecordError

RECORD = ImportedTrajectory("i", "openai", Source("f", 1, "0"), "t", [Message("user", "\ud800")], [], None, None, None)


def test_records_come_back_from_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{json.dumps(to_plain(RECORD))}\n" * 2)
    assert list(read_imported(path)) == [RECORD, RECORD]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": "other"}, "line 2: format: "), ({"messages": [{}]}, "line 2: messages.0.role: field required")],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{json.dumps(to_plain(RECORD))}\n{json.dumps(to_plain(RECORD) | change)}\n")
    with pytest.raises(RecordError, match=message):
        list(read_imported(path))
    path.write_text("{")
    with pytest.raises(RecordError, match="line 1: not valid JSON"):
        list(read_imported(path))
