"""A copy of published weights on an engine's host, brought from version to version by what changed."""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from gagar_mcore.records.store import MANIFEST, Manifest, RecordError, file_sum, read_manifest, write_file
from gagar_mcore.weights.changes import apply_changes
from gagar_mcore.weights.deltas import KIND, SUFFIX, delta_chain, delta_of

HELD = ".held.json"
HASHING = 4  # files at a time


@dataclass(frozen=True, slots=True)
class Transfer:
    """What it took: bytes read from the run directory; why the weights came whole, where they did."""

    bytes: int
    whole: str | None = None


class Replica:
    """`directory` is this replica's alone; what it holds, and that it is whole, a file in it says. Killed at any moment, it finds
    out and begins with a whole copy."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._one_at_a_time = Lock()
        directory.mkdir(parents=True, exist_ok=True)

    def bring(self, weights: Path) -> Transfer:
        """Hold what is published at `weights`, by deltas where they lead there and by a whole copy where they do not or the sums
        are wrong afterwards. Raises RecordError where the copy's sums are wrong too."""
        with self._one_at_a_time:
            return self._bring(weights, read_manifest(weights, "weights"))

    def _bring(self, weights: Path, wanted: Manifest) -> Transfer:
        held = self._held()
        if held == wanted.digest:
            return Transfer(0)
        chain = delta_chain(delta_of(weights).parent, held, wanted.digest) if held else []
        (self.directory / HELD).unlink(missing_ok=True)
        try:
            transfer = self._follow(chain, wanted)
        except (RecordError, ValueError, OSError) as error:
            transfer = self._copy(weights, wanted, str(error))
        write_file(self.directory / HELD, json.dumps({"digest": wanted.digest}).encode())
        return transfer

    def _held(self) -> str | None:
        """The digest of the weights here; None where they may not be whole."""
        try:
            return str(json.loads((self.directory / HELD).read_text())["digest"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _follow(self, chain: Sequence[Path], wanted: Manifest) -> Transfer:
        if not chain:
            raise RecordError(f"{self.directory}: no delta leads from what it holds, if anything")
        size = sum(self._apply(delta) for delta in chain)
        self._settle(wanted)
        return Transfer(size)

    def _apply(self, delta: Path) -> int:
        manifest = read_manifest(delta, KIND, verify=True)
        for name in manifest.files:
            if name.endswith(SUFFIX):
                apply_changes(self.directory / name.removesuffix(SUFFIX), delta / name)
            else:
                shutil.copyfile(delta / name, self.directory / name)
        return sum(size for size, _ in manifest.files.values())

    def _copy(self, weights: Path, wanted: Manifest, reason: str) -> Transfer:
        for name in wanted.files:
            shutil.copyfile(weights / name, self.directory / name)
        self._settle(wanted)
        return Transfer(sum(size for size, _ in wanted.files.values()), reason)

    def _settle(self, wanted: Manifest) -> None:
        """Remove what is not wanted. Raises RecordError where a file is not what the manifest says."""
        for path in self.directory.iterdir():
            if path.name not in wanted.files:
                path.unlink()
        with ThreadPoolExecutor(HASHING) as pool:
            sums = pool.map(file_sum, (self.directory / name for name in wanted.files))
        for (name, sum_), found in zip(wanted.files.items(), sums, strict=True):
            if found != sum_:
                raise RecordError(f"{self.directory / name}: damaged, does not match the published {MANIFEST}")
