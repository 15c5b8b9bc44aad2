"""Every layout against one rank: loss, gradients and three optimizer steps, on packed sequences in several micro-batches.

`make test` runs some of them, `make test-layouts` the others."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ENVIRONMENT
from layout_ranks import MODELS, layout_of

from gagar_mcore.plan.parameters import parameters_on_rank
from gagar_mcore.plan.states import training_states

QUICK = (
    "mimo_v2:tp2",  # expert gradients without expert parallelism
    "mimo_v2:pp2 vpp2",
    "mimo_v2:dp2 etp2",
    "mimo_v2:tp2 cp2 ep2",
    "mimo_v2:tp2 pp2 ep2",
    "mtp:pp2 cp2",
    "replay:tp2 cp2 selective",
)
OTHERS = (
    "mimo_v2:cp2",
    "mimo_v2:cp4",
    "mimo_v2:cp4 ep2",
    "mimo_v2:pp2 cp2",
    "mimo_v2:tp2 cp2",
    "mimo_v2:cp2 dp2 ep4",
    "mimo_v2:tp2 pp2 cp2 ep2 etp2",
    "mimo_v2:dp2",
    "mimo_v2:ep2 dp2",
    "mimo_v2:tp2 ep2",
    "mimo_v2:tp2 etp2",
    "mimo_v2:pp2",
    "mimo_v2:tp4",
    "mimo_v2:pp4",
    "mimo_v2:dp4 ep2",
    "mimo_v2:tp2 dp2",
    "mimo_v2:tp2 dp2 ep4",
    "mimo_v2:tp2 dp2 ep2 etp2",
    "mimo_v2:pp2 vpp2 dp2 ep2",
    "mimo_v2:dp8 ep8",
    "mimo_v2:tp2 pp2 dp2 ep4",
    "mimo_v2:tp2 pp2 vpp2 dp2 ep2",
    "mimo_v2:tp4 pp2 ep2 etp2",
    "qwen3_moe:pp2 vpp2",
    "qwen3_moe:tp2 cp2 ep2",
    "qwen3_moe:tp2 pp2 ep2",
    "qwen3_moe:tp2 dp2 ep2 etp2",
    "mtp:tp2 dp2",
    "mtp:tp2 pp2 vpp2 ep2",
    "replay:tp2 ep2 dp2",
    "replay:pp2 selective",
    "replay:pp2 vpp2 full",
    "replay:tp2 pp2 cp2 ep2 full",
)
JOBS = [*QUICK, *(pytest.param(job, marks=pytest.mark.layouts) for job in OTHERS)]
METRICS = ("loss", "grad_norm", "entropy", "ratio_mean", "ratio_max", "rollout_logprob_abs_diff", "trained_tokens", "tokens")
OPTIONAL = ("mtp_loss", "router_agreement")
pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


@pytest.fixture(scope="module")
def computed(request, tmp_path_factory):
    """What the layouts of the tests that are to run computed, and one rank."""
    root = tmp_path_factory.mktemp("layouts")
    tests = (item for item in request.session.items if item.module is request.module)
    jobs = {test.callspec.params["job"] for test in tests if hasattr(test, "callspec")}
    jobs |= {one_rank(job) for job in jobs | {"mtp:tp1", "replay:tp1", "mimo_v2:tp1"}}
    script = Path(__file__).with_name("layout_ranks.py")
    command = [sys.executable, str(script), str(root), *sorted(jobs)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {job: torch.load(root / f"{job}.pt") for job in jobs}


def one_rank(job: str) -> str:
    return job.split(":")[0] + ":tp1"


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


@pytest.mark.parametrize("job", JOBS)
def test_loss_and_every_gradient_equal_those_of_one_rank(computed, job):
    ours, one = computed[job], computed[one_rank(job)]

    assert ours["stats"] == pytest.approx(one["stats"], abs=1e-5)
    assert all(gradient.any() for name, gradient in one["gradients"].items() if "e_score_correction_bias" not in name)
    assert largest_difference(ours["gradients"], one["gradients"]) < 1e-6


@pytest.mark.parametrize("job", JOBS)
def test_three_optimizer_steps_equal_those_of_one_rank(computed, job):
    ours, one = computed[job], computed[one_rank(job)]
    for metrics, expected in zip(ours["metrics"], one["metrics"], strict=True):
        for name in (*METRICS, *(name for name in OPTIONAL if f"train/{name}" in expected)):
            assert metrics[f"train/{name}"] == pytest.approx(expected[f"train/{name}"], abs=1e-5), name

    assert largest_difference(ours["weights"], one["weights"]) < 1e-5


@pytest.mark.parametrize("job", JOBS)
def test_all_ranks_agree_on_what_they_share_and_cut_it_as_they_put_it_together(computed, job):
    assert computed[job]["replicas agree"]


@pytest.mark.parametrize("job", JOBS)
def test_every_rank_allocates_what_the_plan_counts(computed, job):
    ranks, layout, float32 = computed[job]["bytes"], layout_of(job), 4
    planned = [parameters_on_rank(MODELS[job.split(":")[0]], layout, stage) for stage in range(layout.pp)]

    assert len(ranks) == layout.world_size and {stage for stage, *_ in ranks} == set(range(layout.pp))
    for stage, experts, others, _ in ranks:
        assert experts == float32 * planned[stage].experts
        assert others == float32 * (planned[stage].model - planned[stage].experts + planned[stage].mtp)
    states = [training_states(planned[stage], layout).optimizer for stage, *_ in ranks]
    assert sum(state for *_, state in ranks) == pytest.approx(sum(states), rel=0.01)  # a selection bias has none


def test_multi_token_prediction_learns_and_leaves_the_policy_alone(computed):
    ours, plain = (computed[f"{model}:tp1"] for model in ("mtp", "mimo_v2"))
    assert largest_difference({name: ours["gradients"][name] for name in plain["gradients"]}, plain["gradients"]) == 0
    assert largest_difference({name: ours["weights"][name] for name in plain["weights"]}, plain["weights"]) < 1e-6
    losses = [step["train/mtp_loss"] for step in ours["metrics"]]
    assert all(loss > 0 for loss in losses)
    assert "train/mtp_loss" not in plain["metrics"][0]


def test_replayed_experts_count_and_their_agreement_is_that_of_chance(computed):
    ours, plain = (computed[f"{model}:tp1"] for model in ("replay", "mimo_v2"))
    assert largest_difference(ours["gradients"], plain["gradients"]) > 1e-3
    model = MODELS["replay"]
    for step in ours["metrics"]:
        assert step["train/router_agreement"] == pytest.approx(model.top_k / model.num_experts, abs=0.05)
