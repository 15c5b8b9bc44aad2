from dataclasses import astuple, replace

import pytest
from stored import stored_bytes

from gagar_mcore.models.presets import preset
from gagar_mcore.plan.weight_sync import weight_sync


@pytest.mark.parametrize(("name", "expected"), [("mimo-v2.6-flash", (618, 312, 170)), ("mimo-v2.6-pro", (2042, 1031, 561))])
def test_what_each_format_moves(name, expected):
    assert [round(size / 1e9) for size in astuple(weight_sync(preset(name)))] == list(expected)


@pytest.mark.parametrize("name", ["mini", "mimo-v2-flash", "mimo-v2.6-pro", "qwen3-30b-a3b"])
@pytest.mark.parametrize("format", ["bf16", "fp8", "mxfp4"])
def test_it_is_what_a_checkpoint_of_that_format_takes(name, format):
    """But for the few values that a checkpoint stores in fp32."""
    model = replace(preset(name), mtp_layers=0)
    assert stored_bytes(model, format) == pytest.approx(getattr(weight_sync(model), format), rel=1e-4)
