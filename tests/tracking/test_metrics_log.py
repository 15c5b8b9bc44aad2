import json
import math

import numpy as np
import pytest

from gagar_mcore.tracking.metrics import MetricsLog, read_metrics, scan_metrics


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write(path, *steps):
    log = MetricsLog(path)
    for step, metrics in steps:
        log.log(step, metrics)
    log.close()


def test_one_line_a_step_with_names_as_given(path):
    write(path, (0, {"eval/pass_rate": 0.5}), (1, {"train/tokens": 812, "rollout/entropy": np.float32(0.25)}))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 0, "eval/pass_rate": 0.5},
        {"step": 1, "train/tokens": 812, "rollout/entropy": 0.25},
    ]
    assert read_metrics(path)[1] == {"step": 1, "train/tokens": 812, "rollout/entropy": 0.25}


def test_no_file_means_no_steps(path):
    assert read_metrics(path) == []


def test_numbers_that_are_not_finite_are_null_in_the_file_and_nan_for_readers(path):
    write(path, (1, {"train/loss": math.nan, "train/grad_norm": math.inf}))
    assert json.loads(path.read_text()) == {"step": 1, "train/loss": None, "train/grad_norm": None}
    assert math.isnan(read_metrics(path)[0]["train/loss"])


@pytest.mark.parametrize("torn", [b'{"step": 2, "a": 1', b"{", b'{"step": 2, "a": 1.0}', b"\x00\x00\x00"])
def test_a_torn_line_is_cut_off_at_opening_and_the_step_logged_anew(path, torn):
    write(path, (1, {"a": 1.0}))
    with open(path, "ab") as file:
        file.write(torn)
    assert read_metrics(path) == [{"step": 1, "a": 1.0}]
    write(path, (2, {"a": 2.0}))
    assert read_metrics(path) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]
    assert scan_metrics(path).damaged == 0


def test_a_file_that_is_one_torn_line(path):
    path.parent.mkdir()
    path.write_bytes(b'{"step"')
    write(path, (1, {"a": 1.0}))
    assert path.read_text() == '{"step": 1, "a": 1.0}\n'


def test_a_step_logged_again_after_a_restart_counts_once(path):
    write(path, (1, {"a": 1.0}), (2, {"a": 2.0}))
    write(path, (2, {"a": 2.0}), (3, {"a": 3.0}))
    assert len(path.read_text().splitlines()) == 3
    assert [m["step"] for m in read_metrics(path)] == [1, 2, 3]


def test_of_different_metrics_of_a_step_the_last_count(path):
    write(path, (1, {"a": 1.0}), (2, {"a": 2.0, "b": 1.0}))
    write(path, (2, {"a": 5.0}))
    assert read_metrics(path) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 5.0}]


@pytest.mark.parametrize("line", [b"nonsense", b"[1, 2]", b'{"a": 1}', b'{"step": "2"}', b'{"step": 2, "a": "x"}', b"\xff\xfe"])
def test_damaged_lines_are_counted_and_cost_no_other(path, line):
    write(path, (1, {"a": 1.0}))
    with open(path, "ab") as file:
        file.write(line + b"\n")
    write(path, (3, {"a": 3.0}))
    assert [m["step"] for m in read_metrics(path)] == [1, 3]
    assert scan_metrics(path).damaged == 1


def test_steps_are_read_in_order_whatever_their_order_in_the_file(path):
    write(path, (3, {"a": 3.0}), (1, {"a": 1.0}))
    assert [m["step"] for m in read_metrics(path)] == [1, 3]
