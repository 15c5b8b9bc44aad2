"""What two ranks publish beside the weights of each step."""

import pytest
from conftest import STEPS

from gagar_mcore.records.store import MANIFEST, read_manifest
from gagar_mcore.weights.deltas import KIND, delta_of
from gagar_mcore.weights.replica import HELD, Replica

pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


def test_each_version_but_the_first_comes_as_what_it_changes_too(on_ranks, tmp_path):
    weights = [on_ranks.run.weights(version) for version in range(STEPS + 1)]
    replica = Replica(tmp_path / "replica")
    for version in range(1, STEPS + 1):
        transfer = replica.bring(weights[version])
        assert (transfer.whole is None) == (version > 1), transfer
        published = {path.name: path.read_bytes() for path in weights[version].iterdir() if path.name != MANIFEST}
        assert {path.name: path.read_bytes() for path in replica.directory.iterdir() if path.name != HELD} == published
    assert not delta_of(weights[1]).exists()  # version 0 has other files
    names = read_manifest(delta_of(weights[2]), KIND, verify=True).files
    assert len(names) == 2 and all(name.endswith(".safetensors.changes") for name in names)  # a file of each rank
