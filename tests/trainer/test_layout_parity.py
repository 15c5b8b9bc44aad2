"""Every layout against one rank: loss, gradients and three optimizer steps, on packed sequences in several micro-batches. In
bf16 sums in another order round otherwise, where a pipeline alone changes next to nothing.

`make test` runs some of them, `make test-layouts` the others."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ENVIRONMENT
from layout_ranks import MODELS, layout_of, model_of, way_of

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
    "bf16:tp2 full",
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
    "bf16:tp2 pp2 cp2",
    "bf16 mtp:pp2 vpp2",
    "ppo:tp2 pp2 cp2",
    "ppo replay:tp2 pp2",
    "gspo:cp2",
    "sft:pp2 vpp2",
)
JOBS = [*QUICK, *(pytest.param(job, marks=pytest.mark.layouts) for job in OTHERS)]
TIMES = ("seconds", "tokens_per_second")
PACKING = ("microbatches", "flop_imbalance", "lockstep_imbalance", "padding_share")
SIZE = {"fp32": 4, "bf16": 2}
pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


@pytest.fixture(scope="module")
def computed(request, tmp_path_factory):
    """What the layouts of the tests that are to run computed, and one rank."""
    root = tmp_path_factory.mktemp("layouts")
    tests = (item for item in request.session.items if item.module is request.module)
    jobs = {test.callspec.params["job"] for test in tests if hasattr(test, "callspec")}
    jobs |= {one_rank(job) for job in jobs | {"mtp:", "replay:", "mimo_v2:"}}
    script = Path(__file__).with_name("layout_ranks.py")
    command = [sys.executable, str(script), str(root), *sorted(jobs)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {job: torch.load(root / f"{job}.pt") for job in jobs}


def one_rank(job: str) -> str:
    return way_of(job) + ":tp1"


def largest_difference(
    ours: dict[str, torch.Tensor],
    theirs: dict[str, torch.Tensor],
    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda ours, theirs: (ours - theirs).abs().max(),
) -> float:
    assert ours.keys() == theirs.keys()
    return max(of(ours[name].float(), theirs[name].float()).item() for name in theirs)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours - theirs).norm() / theirs.norm().clamp(min=1e-12)


def mean(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours - theirs).abs().mean()


def is_rounded(job: str) -> bool:
    return layout_of(job).precision == "bf16"


@pytest.mark.parametrize("job", JOBS)
def test_loss_and_every_gradient_equal_those_of_one_rank(computed, job):
    ours, one = computed[job], computed[one_rank(job)]

    assert ours["stats"] == pytest.approx(one["stats"], abs=1e-2 if is_rounded(job) else 1e-5)
    assert all(gradient.any() for name, gradient in one["gradients"].items() if "e_score_correction_bias" not in name)
    if is_rounded(job):
        assert largest_difference(ours["gradients"], one["gradients"], relative) < 0.05
    else:
        assert largest_difference(ours["gradients"], one["gradients"]) < 1e-6


@pytest.mark.parametrize("job", JOBS)
def test_three_optimizer_steps_equal_those_of_one_rank(computed, job):
    ours, one = computed[job], computed[one_rank(job)]
    for metrics, expected in zip(ours["metrics"], one["metrics"], strict=True):
        assert metrics.keys() == expected.keys()
        for name in (name for name in expected if not name.endswith((*TIMES, *PACKING))):
            assert metrics[name] == pytest.approx(expected[name], abs=1e-2 if is_rounded(job) else 1e-5), name

    if is_rounded(job):  # each step moves a weight by about 1e-3
        assert largest_difference(ours["weights"], one["weights"], mean) < 1e-4
    else:
        assert largest_difference(ours["weights"], one["weights"]) < 1e-5


@pytest.mark.parametrize("job", JOBS)
def test_all_ranks_agree_on_what_they_share_and_cut_it_as_they_put_it_together(computed, job):
    assert computed[job]["replicas agree"]


@pytest.mark.parametrize("job", JOBS)
def test_every_rank_allocates_what_the_plan_counts(computed, job):
    ranks, layout = computed[job]["bytes"], layout_of(job)
    planned = [parameters_on_rank(model_of(job), layout, stage) for stage in range(layout.pp)]

    assert len(ranks) == layout.world_size and {stage for stage, *_ in ranks} == set(range(layout.pp))
    for stage, experts, others, _ in ranks:
        assert experts == SIZE[layout.precision] * planned[stage].experts
        expected = SIZE[layout.precision] * (planned[stage].model - planned[stage].experts + planned[stage].mtp)
        assert others == pytest.approx(expected, rel=0.01 if is_rounded(job) else 0)  # a selection bias stays in fp32
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
