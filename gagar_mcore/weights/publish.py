"""Weights of the policy as published versions of a run."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gagar_mcore.records.epochs import Fence, min_weights_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage, open_lineage
from gagar_mcore.records.store import MANIFEST, directory_digest, publish_directory, read_manifest, set_aside_stale
from gagar_mcore.weights.files import write_checkpoint

KIND = "weights"


def publish_weights(
    layout: RunLayout, version: int, tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes], fence: Fence
) -> Path:
    """Publish `version` in the current lineage, with `companions` (file name to content) beside the tensors. Where it is already
    published with the same content it stays as it is; with other content, a new lineage begins with this version. What a fenced
    trainer has published there is set aside."""

    def fill(directory: Path) -> dict[str, Any]:
        write_checkpoint(tensors, companions, directory)
        return {"version": version}

    path = layout.weights(version, current_lineage(layout))
    set_aside_stale(path, KIND, min_weights_epoch(read_epochs(layout), version))
    if (path / MANIFEST).is_file():
        candidate = path.with_name(f".{path.name}.candidate.tmp")
        shutil.rmtree(candidate, ignore_errors=True)
        candidate.mkdir()
        fill(candidate)
        digest = directory_digest(candidate)
        shutil.rmtree(candidate)
        if digest == read_manifest(path, KIND).digest:
            return path
        fence()
        lineage = open_lineage(
            layout, version, "weights of this version, made again after a restart, differ from the published ones"
        )
        path = layout.weights(version, lineage)
    publish_directory(path, KIND, fence.epoch, fill, fence)
    return path
