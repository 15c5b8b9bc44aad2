import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gagar_mcore.config.learning import TrackingSection
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import publish_json
from gagar_mcore.tracking.metrics import read_metrics
from gagar_mcore.tracking.tracker import open_tracker
from gagar_mcore.tracking.wandb_mirror import Ledger, WandbMirror, open_ledger

TRACK = """
import sys
from pathlib import Path
from gagar_mcore.config.learning import TrackingSection
from gagar_mcore.tracking.tracker import open_tracker

tracker = open_tracker(Path(sys.argv[1]), TrackingSection(wandb=sys.argv[2]), "tiny", {"seed": 17})
for step in range(int(sys.argv[3]), int(sys.argv[4])):
    tracker.log(step, {"rollout/pass_rate": step / 10})
"""
CLOSE = "tracker.close()\n"
STAY = "print('logged', flush=True)\nimport time; time.sleep(120)\n"


def command(run, mode, first, last, ending=CLOSE, preamble=""):
    return [sys.executable, "-c", preamble + TRACK + ending, str(run), mode, str(first), str(last)]


def track(*args, env=None, **kwargs):
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command(*args, **kwargs), capture_output=True, text=True, timeout=120, env=environment, check=True)


def records(path: Path) -> list[bytes]:
    """Records of a W&B offline file: 7 bytes of header, then LevelDB log blocks of 32 KiB."""
    data, found, position = path.read_bytes(), [], 7
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        chunk = data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 2):
            found.append(chunk)
        elif kind in (3, 4):
            found[-1] += chunk
    return found


def wandb_history(run: Path) -> list[tuple[str, int]]:
    """(run id, step) of every history row in all offline files, oldest file first."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(path):
            record = pb.Record.FromString(data)
            if record.HasField("history"):
                rows.append((path.stem, record.history.step.num))
    return rows


def test_off_writes_metrics_alone(tmp_path):
    tracker = open_tracker(tmp_path, TrackingSection(wandb="off"), "tiny", {})
    tracker.log(1, {"a": 1.0})
    tracker.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "a": 1.0}]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_without_the_package_one_line_warns_and_metrics_go_on(tmp_path):
    preamble = "import sys\nsys.modules['wandb'] = None\n"  # what makes `import wandb` raise ImportError
    done = track(tmp_path, "offline", 1, 3, preamble=preamble)
    assert len(done.stderr.splitlines()) == 1
    assert "gagar-mcore[wandb]" in done.stderr
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_offline_it_is_one_silent_run_with_each_step_once_whatever_was_off_or_resumed(tmp_path):
    pytest.importorskip("wandb")
    done = [track(tmp_path, "off", 0, 2), track(tmp_path, "offline", 2, 4), track(tmp_path, "offline", 3, 6)]
    assert "".join(d.stdout + d.stderr for d in done) == ""
    history = wandb_history(tmp_path)
    assert [step for _, step in history] == [0, 1, 2, 3, 4, 5]
    assert len({run for run, _ in history}) == 1


def test_killed_and_resumed_it_has_every_step_once(tmp_path):
    pytest.importorskip("wandb")
    with subprocess.Popen(command(tmp_path, "offline", 0, 3, STAY), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
    track(tmp_path, "offline", 2, 6)
    assert [m["step"] for m in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert [step for _, step in wandb_history(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_an_offline_folder_counts_although_a_kill_kept_it_from_the_ledger(tmp_path):
    layout = RunLayout(tmp_path)
    run_id = open_ledger(layout).run_id
    publish_json(layout.wandb_ledger.parent / "offline-run-1" / "ledger.json", {"run_id": run_id, "last_step": 7}, epoch=0)
    assert open_ledger(layout) == Ledger(run_id, 7)


def test_online_without_a_key_says_so_and_goes_on(tmp_path):
    pytest.importorskip("wandb")
    env = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none"), "WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = track(tmp_path, "online", 1, 3, env=env)
    assert "no API key" in done.stderr
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_server_that_never_answers_does_not_hold_up_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        warnings = []
        mirror = WandbMirror(RunLayout(tmp_path), "online", "gagar", "tiny", {}, warnings.append, deadline_s=2.0)
        mirror.notify()
        mirror.close()
    assert len(warnings) == 1
    assert "metrics.jsonl" in warnings[0]


def test_a_damaged_ledger_ends_the_mirror_not_the_run(tmp_path):
    ledger = RunLayout(tmp_path).wandb_ledger
    ledger.parent.mkdir()
    ledger.write_text("{")
    done = track(tmp_path, "offline", 1, 3)
    assert str(ledger) in done.stderr
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
