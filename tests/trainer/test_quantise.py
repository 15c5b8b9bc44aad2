"""Passes on two ranks whose weights are quantised as they are published."""

import pytest
import torch
from quantise_ranks import FORMATS, PRECISIONS

from gagar_mcore.weights.published import open_checkpoint


@pytest.fixture(params=[(format, precision) for format in FORMATS for precision in PRECISIONS], ids="-".join)
def case(request, on_ranks):
    return on_ranks.layouts["quantise"][request.param], on_ranks.root / f"quantised-{'-'.join(request.param)}"


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_passes_compute_with_what_a_reader_of_the_published_weights_gets(case):
    found, published = case
    read = open_checkpoint(published)
    assert_same_bits(found["during"], {name: read(name).to(tensor.dtype) for name, tensor in found["during"].items()})
    assert sum(not torch.equal(tensor, found["before"][name]) for name, tensor in found["during"].items()) > 20


def test_a_step_computes_with_them_and_updates_the_weights_that_are_not_quantised(case):
    found, _ = case
    assert_same_bits(found["in the step"], found["during"])
    assert found["metrics"]["train/grad_norm"] > 0
    for later in ("after", "stepped"):
        assert_same_bits(found[later], found["before"])
