"""How a global batch is cut over micro-batches and ranks changes nothing: real processes over gloo, one pool for all cases."""

import pytest
import torch
from loss_cases import by_formula
from loss_ranks import CUTS, ONE, VARIANTS, compute_everything, global_case

from gagar_mcore.ops.behaviour import Behaviour

pytestmark = pytest.mark.timeout(240)
IDS = [f"{v.spec.name}-{v.aggregation}" for v in VARIANTS]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return compute_everything(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("index", range(len(VARIANTS)), ids=IDS)
def test_every_cut_gives_the_same_loss_gradient_and_metrics(computed, index):
    results = computed[index]
    one = results[CUTS.index(ONE)]
    expected = one.stats.metrics()
    assert one.gradient.abs().max() > 1e-3

    for cut, result in zip(CUTS, results, strict=True):
        assert result.stats.metrics() == pytest.approx(expected, abs=1e-6), cut
        torch.testing.assert_close(result.gradient, one.gradient, atol=1e-6, rtol=0, msg=str(cut))
        torch.testing.assert_close(result.behaviour, one.behaviour, atol=1e-6, rtol=0, msg=str(cut))


@pytest.mark.parametrize("index", range(len(VARIANTS)), ids=IDS)
def test_the_uncut_batch_follows_the_formula(computed, index):
    variant, one = VARIANTS[index], computed[index][CUTS.index(ONE)]
    case = global_case(variant.aggregation)
    behaviour = Behaviour(one.behaviour, torch.tensor(0), 2.0) if variant.shaped else None
    loss, gradient, _ = by_formula(case, variant.spec, old=variant.old, ref=variant.ref, behaviour=behaviour)

    assert one.stats.metrics()["loss"] == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(one.gradient.double(), gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("index", [i for i, v in enumerate(VARIANTS) if v.shaped])
def test_shaping_moves_what_is_trained(computed, index):
    assert (computed[index][CUTS.index(ONE)].behaviour != 1).all()
