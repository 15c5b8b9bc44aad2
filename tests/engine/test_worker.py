"""What the worker sends and the controller makes of it."""

import io
import json
import queue

import numpy as np
import pytest

from gagar_mcore.engine import embedded, framing, worker
from gagar_mcore.engine.protocol import Generation, RoutedTokens
from gagar_mcore.records.types import WeightSpan


@pytest.mark.parametrize("experts", [[[[0, 255]], [[7, 3]]], [[[256, 1]], [[2, 0]]]])
def test_recorded_experts_cross_as_they_are_in_one_byte_each_where_that_holds_them(experts):
    sent = Generation([5], [-0.5], [WeightSpan(3, 0, 1)], "stop", RoutedTokens(9, np.array(experts, np.int16)))
    message = json.loads(json.dumps(worker._plain(sent)))
    assert message["routed"]["experts"]["dtype"] == ("|u1" if np.max(experts) < 256 else "<i2")
    got = embedded._generation(message)
    assert (got.token_ids, got.logprobs, got.weight_spans, got.finish_reason) == ([5], [-0.5], [WeightSpan(3, 0, 1)], "stop")
    assert got.routed.start == 9
    assert got.routed.experts.dtype == np.int16 and got.routed.experts.tolist() == experts


def test_an_answer_without_experts_crosses_too():
    sent = Generation([5], [-0.5], [], "stop")
    assert embedded._generation(json.loads(json.dumps(worker._plain(sent)))) == sent


def test_an_answer_too_long_for_a_frame_fails_its_call_alone(monkeypatch):
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 300)
    out = io.BytesIO()
    serving = worker.Worker(queue.Queue(), out)
    serving._send({"call": 4, "result": "x" * 300})
    serving._send({"call": 5, "result": "short"})
    out.seek(0)
    refused, answered = framing.read_frame(out), framing.read_frame(out)
    assert refused["call"] == 4 and "exceeds the bound of 300; ask for less in one call" in refused["error"]
    assert answered == {"call": 5, "result": "short"}
