import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from gagar_mcore.trainer.lifetime import wait_for_batch, wait_for_record

BATCH = Path("run/steps/000001/batch")


def test_a_batch_is_waited_for():
    looks = iter([False, False, True])
    wait_for_batch(lambda: next(looks), BATCH, 60.0)
    assert list(looks) == []


def test_a_batch_that_does_not_come_is_named_with_the_mend():
    with pytest.raises(TimeoutError, match=r"steps/000001/batch: no batch within trainer\.batch_timeout_s=0\.05; start the"):
        wait_for_batch(lambda: False, BATCH, 0.05)


def test_the_controller_s_record_is_waited_for_and_no_longer_than_the_deadline(tmp_path):
    record = tmp_path / "load.json"
    wait_for_record(record, 0.05)
    writer = threading.Timer(0.2, record.touch)
    writer.start()
    wait_for_record(record, 60.0)
    assert record.is_file()


def test_a_rank_whose_launcher_has_ended_waits_no_longer():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    launcher = context.Process(target=launch, args=(there,))
    launcher.start()
    assert here.poll(30) and here.recv() == "waits"
    os.kill(launcher.pid, signal.SIGKILL)

    assert here.poll(30) and here.recv() == "Orphaned"
    launcher.join()


def launch(pipe) -> None:
    multiprocessing.get_context("fork").Process(target=wait, args=(pipe,)).start()
    signal.pause()


def wait(pipe) -> None:
    looks = iter(["waits"])
    try:
        wait_for_batch(lambda: any(map(pipe.send, looks)), BATCH, 60.0)  # send returns None
    except RuntimeError as error:
        pipe.send(type(error).__name__)
