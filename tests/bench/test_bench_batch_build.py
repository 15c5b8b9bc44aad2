import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gagar_mcore.bench import batch_build
from gagar_mcore.bench.batch_build_way import gagar, groups, trajectories
from gagar_mcore.records.batch import read_batch
from gagar_mcore.records.layout import RunLayout

TOKENS = 40_000


def test_what_is_measured_is_a_published_batch_of_all_tokens(tmp_path: Path) -> None:
    figures = gagar(TOKENS, tmp_path)
    batch, meta = read_batch(RunLayout(tmp_path).batch(1))
    drawn = list(trajectories(TOKENS))
    assert len(batch.tokens) == sum(len(t.token_ids) for t in drawn) >= TOKENS
    assert meta["trajectory_ids"] == [t.id for t in drawn]
    assert batch.weights @ np.diff(batch.cu_seqlens) > 1.0  # those that are not trained weigh as well
    assert figures["bytes"] == sum(path.stat().st_size for path in RunLayout(tmp_path).batch(1).glob("*.*")) - manifest(tmp_path)
    assert {version for version in np.unique(batch.weight_version)} == {-1, 0, 1}


def manifest(root: Path) -> int:
    return (RunLayout(root).batch(1) / "manifest.json").stat().st_size


def test_trajectories_are_the_same_wherever_they_are_made() -> None:
    assert [t.id for _, members in groups(TOKENS) for t in members] == [t.id for t in trajectories(TOKENS)]
    assert next(trajectories(1)) == next(trajectories(1))


def test_the_ways_of_a_size_are_measured_in_turn(tmp_path: Path) -> None:
    case = batch_build.compare(TOKENS, 1, tmp_path, None)
    assert set(case["ways"]) == {"gagar", "plain"} and case["of_plain_write"] > 0
    assert case["ways"]["gagar"]["bytes"] == case["ways"]["plain"]["bytes"]
    assert not list(tmp_path.iterdir())


def test_a_way_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)by hand of 1 tokens failed with 1:.*KeyError: 'by hand'"):
        batch_build.measure("by hand", 1, tmp_path, Path(sys.executable))


def test_it_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_build, "MILLION", 1000)
    batch_build.main(["--json", "--millions", "20", "--rounds", "1", "--folder", str(tmp_path), "--verl", "nowhere"])
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert case["tokens"] == 20_000
