"""Published weights as what changed since an earlier version: `deltas/L-VVVVVV` of a run, beside `weights/L-VVVVVV`."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from gagar_mcore.records.store import MANIFEST, FileSum, Manifest, RecordError, file_sum, read_manifest
from gagar_mcore.weights.changes import read_header, write_changes

KIND = "delta"
SUFFIX = ".changes"
Share = tuple[int, int]


def delta_of(weights: Path) -> Path:
    """Where the delta of published weights is, if there is one."""
    return weights.parent.with_name("deltas") / weights.name


def comparable(base: Path, target: Path) -> bool:
    """Whether both versions have the same tensors in the same places."""
    names = [{path.name for path in directory.glob("*.safetensors")} for directory in (base, target)]
    return names[0] == names[1] and all(read_header(base / name) == read_header(target / name) for name in names[0])


def delta_meta(base: Path, target: Path) -> dict[str, str]:
    """What the manifest of a delta says."""
    return {side: read_manifest(path, "weights").digest for side, path in (("base", base), ("target", target))}


def write_delta(base: Path, target: Path, directory: Path, share: Share = (0, 1)) -> dict[str, FileSum]:
    """Of the files that differ, the share `(i, n)` of one of n processes; returns their sums. Raises ValueError where they
    are not `comparable`."""
    before, after = (read_manifest(path, "weights").files for path in (base, target))
    written = []
    for number, (name, of) in enumerate(sorted(after.items())):
        if number % share[1] != share[0] or before.get(name) == of:
            continue
        if name.endswith(".safetensors"):
            written.append(directory / f"{name}{SUFFIX}")
            write_changes(base / name, target / name, written[-1])
        else:
            written.append(directory / name)
            shutil.copyfile(target / name, written[-1])
    return {path.name: file_sum(path) for path in written}


def delta_chain(deltas: Path, held: str, wanted: str) -> list[Path]:
    """The deltas in this folder that lead from weights of the digest `held` to those of `wanted`, in order; none where none
    do."""
    known = {manifest.meta["target"]: (path, manifest.meta["base"]) for path, manifest in _published(deltas).items()}
    chain: list[Path] = []
    while wanted != held:
        if wanted not in known:
            return []
        path, wanted = known.pop(wanted)
        chain.insert(0, path)
    return chain


def _published(deltas: Path) -> Mapping[Path, Manifest]:
    found = {}
    for file in deltas.glob(f"[0-9]*/{MANIFEST}"):
        try:
            found[file.parent] = read_manifest(file.parent, KIND)
        except RecordError:  # damaged, or deleted meanwhile: another way leads there too
            continue
    return found
