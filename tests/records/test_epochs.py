import subprocess
import sys
from pathlib import Path

import pytest

from gagar_mcore.records.epochs import Fence, Fenced, RunLock, min_batch_epoch, min_weights_epoch, open_epoch, read_epochs
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.lineage import current_lineage, open_lineage
from gagar_mcore.records.store import RecordError


def test_each_takeover_opens_the_next_epoch(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert read_epochs(layout) == []
    assert [open_epoch(layout, 1, 0).number, open_epoch(layout, 4, 3).number] == [1, 2]
    assert [(e.next_step, e.next_version) for e in read_epochs(layout)] == [(1, 0), (4, 3)]


def test_what_an_old_epoch_wrote_before_the_takeover_counts_and_after_it_does_not(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    open_epoch(layout, next_step=1, next_version=0)
    open_epoch(layout, next_step=4, next_version=3)
    epochs = read_epochs(layout)
    assert [min_batch_epoch(epochs, step) for step in (1, 3, 4, 9)] == [1, 1, 2, 2]
    assert [min_weights_epoch(epochs, version) for version in (0, 2, 3)] == [1, 1, 2]


def test_a_fence_lets_the_newest_epoch_pass_and_no_other(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    first = open_epoch(layout, 1, 0)
    Fence(layout, first.number)()
    second = open_epoch(layout, 1, 0)
    Fence(layout, second.number)()
    with pytest.raises(Fenced, match="epoch 2 has taken over from epoch 1"):
        Fence(layout, first.number)()


HOLDER = """
import sys, time
from pathlib import Path
from gagar_mcore.records.epochs import RunLock
from gagar_mcore.records.layout import RunLayout
lock = RunLock(RunLayout(Path(sys.argv[1])))
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_has_one_owner_and_a_killed_owner_frees_it(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Fenced, match="another process"):
        RunLock(RunLayout(tmp_path))
    holder.kill()
    holder.wait(timeout=10)
    holder.stdout.close()
    RunLock(RunLayout(tmp_path)).release()


def test_damaged_epochs_are_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.epochs.write_text("[{]")
    with pytest.raises(RecordError, match=r"epochs\.json"):
        read_epochs(layout)


def test_lineages_count_up(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert current_lineage(layout) == 0
    assert open_lineage(layout, 5, "weights differ") == 1
    assert current_lineage(layout) == 1
    (tmp_path / "lineage.json").write_text("?")
    with pytest.raises(RecordError, match="damaged"):
        current_lineage(layout)
