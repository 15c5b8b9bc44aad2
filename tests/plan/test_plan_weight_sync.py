from dataclasses import astuple, replace

import pytest

from gagar_mcore.models.presets import preset
from gagar_mcore.plan.weight_sync import weight_sync
from gagar_mcore.weights.storage import checkpoint_bytes


@pytest.mark.parametrize(("name", "expected"), [("mimo-v2.6-flash", (618, 312, 170)), ("mimo-v2.6-pro", (2042, 1031, 561))])
def test_what_each_format_moves(name, expected):
    assert [round(size / 1e9) for size in astuple(weight_sync(preset(name)))] == list(expected)


@pytest.mark.parametrize("place", range(3))
def test_it_is_what_a_checkpoint_of_that_format_takes(place):
    """But for the few values that a checkpoint stores in fp32."""
    model = replace(preset("mini"), mtp_layers=0)
    moved = astuple(weight_sync(model))[place]
    assert checkpoint_bytes(model, ("bf16", "fp8", "mxfp4")[place]) == pytest.approx(moved, rel=1e-4)
