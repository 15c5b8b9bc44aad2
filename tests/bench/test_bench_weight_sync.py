from pathlib import Path

import pytest
import torch

from gagar_mcore.bench import weight_sync
from gagar_mcore.bench.synced_run import SyncedRun, model_of, stored_bytes
from gagar_mcore.weights.published import PublishedCheckpoint
from gagar_mcore.weights.replica import Replica


@pytest.mark.parametrize("megabytes", [40, 640, 2000])
def test_a_model_takes_about_the_bytes_that_are_asked_for(megabytes: int) -> None:
    assert stored_bytes(model_of(megabytes * 10**6, "bf16"), "bf16") == pytest.approx(megabytes * 10**6, abs=6e6)


def test_a_step_changes_its_share_and_what_it_changed_leads_to_the_next_version(tmp_path: Path) -> None:
    run = SyncedRun(model_of(10**6, "bf16"), "bf16", tmp_path)
    first = run.publish()
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    before = run.weights[name].clone()
    run.step(0.03)
    second = run.publish()
    assert (run.weights[name] != before).float().mean() == pytest.approx(0.03, abs=0.002)
    assert torch.equal(PublishedCheckpoint(second).read(name), run.weights[name])

    delta = run.publish_delta()
    sizes = [sum(path.stat().st_size for path in directory.iterdir()) for directory in (delta, second)]
    assert sizes[0] < 0.1 * sizes[1]
    replica = Replica(tmp_path / "replica")
    replica.bring(first)
    assert replica.bring(second).whole is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--changed", "3"], "must be a number between 0 and 1"),
        (["--megabytes", "0"], "must be a positive number"),
        (["--python", "no/such/python"], "no such Python; `make .venv-sglang/.installed`"),
    ],
)
def test_values_that_make_no_sense_are_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        weight_sync.main(options)
    assert said in capsys.readouterr().err
