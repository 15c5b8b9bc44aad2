"""Every policy loss through Megatron ranks: the cut into micro-batches and data-parallel ranks changes no step."""

import pytest
from rank_checks import LOSSES

pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks
OF_THE_PACKING = ("microbatches", "flop_imbalance", "lockstep_imbalance", "padding_share")
OF_THE_CUT = {f"train/{name}" for name in (*OF_THE_PACKING, "seconds", "tokens_per_second")}


@pytest.fixture(scope="module")
def results(on_ranks):
    """`[loss]`: what one rank in one micro-batch gives, and every other cut."""
    both = [on_ranks.layouts[f"losses-{ranks}"] for ranks in (1, 2)]
    return {name: [result for cuts in both for result in cuts[name].values()] for name in LOSSES}


def metrics(result, step: int) -> dict[str, float]:
    return {name: value for name, value in result["metrics"][step].items() if name not in OF_THE_CUT}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_cut_takes_the_same_three_steps(results, loss):
    one, *others = results[loss]
    assert len({result["metrics"][0]["train/microbatches"] for result in (one, *others)}) > 1

    for result in others:
        assert metrics(result, 0) == pytest.approx(metrics(one, 0), rel=1e-6, abs=1e-6)
        for step in (1, 2):
            assert metrics(result, step) == pytest.approx(metrics(one, step), abs=1e-5)
        assert max((result["weights"][name] - one["weights"][name]).abs().max() for name in one["weights"]) < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_numbers_that_are_none_are_refused_before_the_optimizer(on_ranks, ranks):
    said = on_ranks.layouts[f"losses-{ranks}"]["refusals"]
    assert said["nan"].startswith("batch: logprobs: holds nan")
    assert said["infinite"].startswith("batch: logprobs: holds an infinity")
    assert said["advantage"].startswith("batch: advantages: holds nan")
    assert "the gradient is not finite" in said["an infinite weight"]
    assert all(said["weights"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_batch_must_not_hold_is_refused_on_all_ranks_with_column_and_mend(on_ranks, ranks):
    said = on_ranks.layouts[f"losses-{ranks}"]["refusals"]
    mend = "; sample with an engine that records this model's experts, or set trainer.routing=free"

    assert said["token"] == "batch: tokens: holds ids beyond the 512 of the model; sample with the tokenizer of model.init"
    assert said["mark"].startswith("batch: loss_mask: holds marks other than 0 and 1")
    assert said["error"].startswith("batch: error_mask: holds marks other than 0 and 1")
    assert said["first"].startswith("batch: loss_mask: marks the first token of a sequence, which nothing predicts")
    assert said["no experts"] == "batch: experts: missing, there are no experts to replay" + mend
    assert said["fewer experts"].startswith("batch: experts: has ") and said["fewer experts"].endswith(" x 3 x 2 choices" + mend)
    assert said["expert"] == "batch: experts: holds ids beyond the 8 of the model" + mend
    for case in ("expert twice", "expert unknown"):
        assert said[case] == "batch: experts: sends a token to an expert twice, or to too few" + mend


def test_the_ratio_to_the_current_policy_is_one(results):
    for result in results["ppo, current"]:
        for step in result["metrics"]:
            assert (step["train/ratio_mean"], step["train/ratio_max"], step["train/masked_share"]) == (1.0, 1.0, 0.0)
            assert 0 < step["train/truncated_share"] < 1
            assert step["train/importance_mean"] <= 1.05


def test_a_second_update_is_compared_with_the_policy_before_the_first(results):
    for result in results["ppo, two updates"]:
        assert all(step["train/ratio_max"] > 1.001 for step in result["metrics"])


def test_the_divergence_from_the_reference_grows_from_zero_and_leaves_its_weights_alone(results):
    for result in results["ppo, divergence"]:
        first, *later = (step["train/ref_kl"] for step in result["metrics"])
        assert first == pytest.approx(0, abs=1e-9)
        assert all(kl > 1e-5 for kl in later)
    plain, shaped = (results[loss][0]["weights"] for loss in ("ppo", "ppo, divergence"))
    assert max((plain[name] - shaped[name]).abs().max() for name in plain) > 1e-6


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo"])
def test_bounds_of_the_ratio_to_the_rollout_bite(results, loss):
    assert all(0 < step["train/masked_share"] < 1 for step in results[loss][0]["metrics"])


def test_shaping_is_reported_and_absent_where_it_is_off(results):
    for step in results["mimo, shaped"][0]["metrics"]:
        assert step["train/behaviour_alpha"] > 1 > step["train/behaviour_beta"]
        assert step["train/behaviour_clamped"] == 0
        assert step["train/flagged_share"] > 0
    assert {name for name in results["ppo"][0]["metrics"][0] if "behaviour" in name or "importance" in name} == set()
