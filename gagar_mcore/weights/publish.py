"""Weights of the policy as published versions of a run."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from gagar_mcore.records.epochs import Fence, min_weights_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage, open_lineage
from gagar_mcore.records.store import (
    MANIFEST,
    FileSum,
    begin_directory,
    directory_digest,
    finish_directory,
    read_manifest,
    set_aside_stale,
)
from gagar_mcore.weights.hosts import host_id

KIND = "weights"


def publish_weights(layout: RunLayout, version: int, fill: Callable[[Path], Mapping[str, FileSum]], fence: Fence) -> Path:
    """Publish what `fill(directory)` writes as `version` in the current lineage; `fill` returns the sums that it knows of its
    files. Where the version is already published with the same content it stays as it is; with other content, a new lineage
    begins with this version. What a fenced trainer has published there is set aside."""
    path = layout.weights(version, current_lineage(layout))
    set_aside_stale(path, KIND, min_weights_epoch(read_epochs(layout), version))
    temporary = begin_directory(path)
    try:
        known = fill(temporary)
        if (path / MANIFEST).is_file():
            if directory_digest(temporary, known) == read_manifest(path, KIND).digest:
                return path
            fence()
            reason = "weights of this version, made again after a restart, differ from the published ones"
            path = layout.weights(version, open_lineage(layout, version, reason))
        finish_directory(temporary, path, KIND, fence.epoch, {"version": version, "host": host_id()}, fence, known)
        return path
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
