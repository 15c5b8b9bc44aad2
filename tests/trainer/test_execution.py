"""Precision, recomputation and the place and precision of optimizer state, against the plainest way, in every layout."""

import pytest
import torch
from execution_ranks import LAYOUTS

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.parameters import parameters_on_rank
from gagar_mcore.plan.states import training_states
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_manifest

pytestmark = [pytest.mark.timeout(600), pytest.mark.layouts]  # the first test starts the ranks
WAYS_OF = {layout: ways for of_size in LAYOUTS.values() for layout, ways in of_size.items()}
LR = 1e-3  # about what each of three steps moves every weight


def pairs(*ways: str) -> list[tuple[str, str]]:
    found = [(layout, way) for layout, present in WAYS_OF.items() for way in ways if way in present]
    assert {way for _, way in found} == set(ways), "a way that no layout has"
    return found


@pytest.fixture(scope="module")
def computed(executed):
    return {**executed.layouts["execution-1"], **executed.layouts["execution-2"]}


def differences(one, other) -> torch.Tensor:
    return torch.cat([(one[name].float() - other[name].float()).abs().flatten() for name in other])


def numbers(results) -> list[float]:
    return [metrics[f"train/{name}"] for metrics in results["metrics"] for name in ("loss", "grad_norm", "entropy")]


SAME = ("fp32, selective", "fp32, full", "fp32, host", "fp32, parked", "bf16, host", "bf16, parked")


@pytest.mark.parametrize(("layout", "way"), pairs(*SAME))
def test_recomputation_and_state_on_the_host_change_no_bit(computed, layout, way):
    results, plain = computed[layout][way], computed[layout][way.split(",")[0]]

    assert max(gradient.abs().max() for gradient in plain["gradients"].values()) > 1e-3
    assert numbers(results) == numbers(plain)
    for kind in ("gradients", "weights"):
        assert differences(results[kind], plain[kind]).max() == 0


@pytest.mark.parametrize("layout", WAYS_OF)
def test_nothing_of_a_parked_policy_stays(computed, layout):
    before, left = computed[layout]["fp32"]["left"]

    assert before > 1 << 20
    assert left == 0


@pytest.mark.parametrize(
    ("layout", "way", "again"),
    [(*pair, {"experts"}) for pair in pairs("fp32, selective")]
    + [(*pair, {"layer", "core attention", "experts"}) for pair in pairs("fp32, full")],
)
def test_the_backward_pass_computes_again_what_was_not_kept(computed, layout, way, again):
    calls = computed[layout]["fp32"]["calls"]

    assert calls.keys() == {"layer", "core attention", "experts"}
    assert computed[layout][way]["calls"] == {name: count * (1 + (name in again)) for name, count in calls.items()}


@pytest.mark.parametrize("layout", WAYS_OF)
def test_bf16_stays_near_fp32(computed, layout):
    ours, fp32 = computed[layout]["bf16"], computed[layout]["fp32"]

    assert {tensor.dtype for name, tensor in ours["weights"].items() if "e_score" not in name} == {torch.bfloat16}
    assert numbers(ours) == pytest.approx(numbers(fp32), rel=1e-2, abs=1e-2)
    size = torch.cat([gradient.flatten() for gradient in fp32["gradients"].values()]).norm()
    assert 0 < differences(ours["gradients"], fp32["gradients"]).norm() < 0.05 * size  # few tokens go to other experts
    assert 0 < differences(ours["weights"], fp32["weights"]).mean() < LR / 5


@pytest.mark.parametrize(("layout", "way"), pairs("fp32, small moments", "bf16, small moments, host", "bf16, small gradients"))
def test_small_moments_and_gradients_stay_near_large_ones(computed, layout, way):
    results, plain = computed[layout][way], computed[layout][way.split(",")[0]]

    assert numbers(results) == pytest.approx(numbers(plain), rel=1e-2, abs=5e-3)
    assert 0 < differences(results["weights"], plain["weights"]).mean() < LR / 25


@pytest.mark.parametrize("layout", WAYS_OF)
def test_master_weights_are_those_that_were_loaded(computed, layout):
    assert computed[layout]["bf16, rate 0"] == {"weights": True, "masters": True}


@pytest.mark.parametrize("layout", WAYS_OF)
def test_the_optimizer_takes_the_memory_that_the_plan_counts(computed, layout):
    for way, results in computed[layout].items():
        if way != "bf16, rate 0":
            trainer = TrainerSection(**results["trainer"])
            planned = training_states(parameters_on_rank(preset("tiny"), trainer, 0), trainer).optimizer
            assert results["state bytes"] == trainer.world_size * planned, way


def test_a_run_goes_on_when_its_state_moves_from_host_to_device(executed):
    moved, stayed = (
        [read_manifest(RunLayout(executed.root / name).weights(version), "weights").digest for version in range(3)]
        for name in ("moved", "stayed")
    )

    assert moved == stayed and len(set(moved)) == 3
