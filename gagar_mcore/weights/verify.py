"""Published weights are hashed once on a host: by who published them, or by who comes first."""

from functools import lru_cache
from pathlib import Path
from threading import Lock

from gagar_mcore.records.store import Manifest, read_manifest
from gagar_mcore.weights.hosts import host_id

KIND = "weights"
_one_at_a_time = Lock()


def verify_weights(directory: Path) -> Manifest:
    """The manifest of published weights whose files are known to match it: their sizes are looked at each time, their hashes made
    once a process, and not at all where they were written on this host, since it was started. Raises RecordError."""
    manifest = read_manifest(directory, KIND)
    if manifest.meta.get("host") != host_id():
        with _one_at_a_time:
            _hash(directory.absolute(), manifest.digest)
    return manifest


@lru_cache(maxsize=16)
def _hash(directory: Path, digest: str) -> None:
    """Raises RecordError, and then is not remembered."""
    read_manifest(directory, KIND, verify=True)
