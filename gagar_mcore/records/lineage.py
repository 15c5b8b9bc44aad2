"""Lineages: when a restart cannot reproduce published weights bit for bit, the run goes on in a new line of versions."""

import json

from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import RecordError, write_file


def current_lineage(layout: RunLayout) -> int:
    """The lineage of the current weights; 0 until a restart opened another."""
    path = layout.root / "lineage.json"
    try:
        return int(json.loads(path.read_text())["lineage"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: damaged") from error


def open_lineage(layout: RunLayout, version: int, reason: str) -> int:
    """Begin the next lineage with weights `version`; returns its number."""
    lineage = current_lineage(layout) + 1
    record = {"lineage": lineage, "from_version": version, "reason": reason}
    write_file(layout.root / "lineage.json", json.dumps(record).encode())
    return lineage
