"""slime is not on PyPI (the package `slime` there is another), so its side is mirrored here, from its sources on GitHub."""

import asyncio
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pytest
from doc_blocks import block

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit
from gagar_mcore.integrations.rows import Notes, Row
from gagar_mcore.integrations.slime import post_process_rewards


@dataclass
class EarlySample:
    """A stand-in for `slime.utils.types.Sample` of THUDM/slime before it had a `rollout_id`: `Status`, `get_reward_value`, and
    the fields that reward post-processing reads, under their names and with their defaults; other fields are left out."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    reward: float | dict[str, Any] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Namespace) -> float:
        return self.reward[args.reward_key] if args.reward_key else self.reward


@dataclass
class Sample(EarlySample):
    """The same of later versions, where every sample says which rollout it is a part of."""

    rollout_id: int | None = None


def train_data(args: Namespace, samples: list[Sample], hook: Callable[..., Any]) -> dict[str, list[float]]:
    """A stand-in for what `RolloutManager._convert_samples_to_train_data` (slime/ray/rollout.py) does with the hook: it takes its
    answer as it is, normalizes nothing afterwards, and wants one value a sample in both lists."""
    raw_rewards, rewards = hook(args, samples)
    assert len(raw_rewards) == len(samples)
    assert len(rewards) == len(samples)
    return {"raw_reward": raw_rewards, "rewards": rewards}


def arguments(**changes):
    return Namespace(**{"advantage_estimator": "grpo", "normalize_advantages": False, "reward_key": None, **changes})


def sample(index, reward, group=0, **changes):
    notes = {key: changes.pop(key) for key in list(changes) if key.startswith("gagar_")}
    changes = {"status": Sample.Status.COMPLETED, "rollout_id": index, **changes}
    return Sample(group, index, reward, metadata={"task": "t", **notes}, **changes)


def by_hand(factors, rewards, params=None):
    rows = [Row("g", str(i), reward, Notes()) for i, reward in enumerate(rewards)]
    credit = compute_credit(rows, FactorVerdict({str(i): f for i, f in factors.items()}), params or CreditParams())
    return [credit.advantages[row.id] for row in rows]


def test_advantages_in_the_order_of_the_samples_and_raw_rewards_beside_them():
    samples = [
        sample(0, 1.0, gagar_factor=1.0),
        sample(4, 1.0, group=1, gagar_factor=0.2),
        sample(1, 0.0),
        sample(5, 1.0, group=1, gagar_factor=0.9),
        sample(2, 1.0, gagar_factor=0.4),
        sample(6, 0.0, group=1),
    ]
    found = train_data(arguments(), samples, post_process_rewards)
    first, second = by_hand({0: 1.0, 2: 0.4}, [1.0, 0.0, 1.0]), by_hand({0: 0.2, 1: 0.9}, [1.0, 1.0, 0.0])
    assert found["rewards"] == [first[0], second[0], first[1], second[1], first[2], second[2]]
    assert found["raw_reward"] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def test_constants_come_from_the_arguments():
    samples = [sample(0, 1.0, gagar_factor=1.0), sample(1, 1.0, gagar_factor=0.2), sample(2, 0.0)]
    _, found = post_process_rewards(arguments(gagar={"cap": None}), samples)
    assert found == by_hand({0: 1.0, 1: 0.2}, [1.0, 1.0, 0.0], CreditParams(cap=None))
    assert found != post_process_rewards(arguments(), samples)[1]


def test_segments_of_a_rollout_share_its_advantage():
    split = [sample(0, 1.0, rollout_id=10), sample(0, 1.0, rollout_id=10), sample(1, 0.0), sample(2, 0.0)]
    assert post_process_rewards(arguments(), split)[1] == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3])


def test_samples_without_a_rollout_id_are_trajectories_of_their_own():
    alone = [sample(index, reward, rollout_id=None) for index, reward in ((0, 1.0), (0, 1.0), (1, 0.0), (2, 0.0))]
    assert post_process_rewards(arguments(), alone)[1] == [0.5, 0.5, -0.5, -0.5]


def test_samples_of_a_version_without_rollout_ids_are_trajectories_of_their_own():
    early = [EarlySample(0, index, reward, EarlySample.Status.COMPLETED) for index, reward in ((0, 1.0), (0, 1.0), (1, 0.0))]
    assert post_process_rewards(arguments(), early)[1] == pytest.approx([1 / 3, 1 / 3, -2 / 3])


def test_what_a_version_does_not_have_is_taken_as_unset_or_named():
    args = Namespace(advantage_estimator="grpo", reward_key=None)
    assert post_process_rewards(args, [sample(0, 1.0), sample(1, 0.0)])[1] == [0.5, -0.5]
    bare = sample(3, 1.0)
    del bare.group_index
    bare = Namespace(**vars(bare), get_reward_value=bare.get_reward_value)
    with pytest.raises(ValueError, match=r"sample 0 \(index 3\): group_index is missing; give all samples of a prompt"):
        post_process_rewards(args, [bare])


def test_a_status_other_than_aborted_and_a_reward_of_numpy_count_as_they_are():
    samples = [sample(0, np.float32(1), status=Sample.Status.PENDING), sample(1, 0.0, status=Sample.Status.TRUNCATED)]
    assert post_process_rewards(arguments(), samples) == ([1.0, 0.0], [0.5, -0.5])


def test_an_aborted_sample_is_invalid_and_may_lack_a_reward():
    samples = [sample(0, 1.0), sample(1, 0.0), sample(2, None, status=Sample.Status.ABORTED)]
    assert post_process_rewards(arguments(), samples) == ([1.0, 0.0, None], [0.5, -0.5, 0.0])


def test_validity_can_be_said_outright():
    samples = [
        sample(0, 1.0),
        sample(1, 0.0, status=Sample.Status.ABORTED, gagar_valid=True),
        sample(2, 0.0, status=Sample.Status.FAILED),
        sample(3, 0.0, gagar_valid=False),
    ]
    assert post_process_rewards(arguments(), samples)[1] == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])


def test_dropped_groups_are_zero_and_reported(caplog):
    caplog.set_level("INFO")
    samples = [sample(0, 1.0), sample(1, 1.0), sample(2, 0.0, group=1), sample(3, 0.0, group=1), sample(4, 1.0, group=2)]
    assert post_process_rewards(arguments(), samples)[1] == [0.0] * 5
    assert "kept 0" in caplog.text
    assert "dropped/all_pass 1, dropped/all_fail 1, dropped/too_few_valid 1" in caplog.text


def test_a_late_verdict_falls_back_to_the_outcome(caplog):
    samples = [sample(0, 1.0, gagar_fallback="late"), sample(1, 0.0, gagar_fallback="late")]
    assert post_process_rewards(arguments(), samples)[1] == [0.5, -0.5]
    assert "fallback/late 1" in caplog.text


def test_rewards_behind_a_key():
    samples = [sample(0, {"tests": 1.0, "format": 0.0}), sample(1, {"tests": 0.0, "format": 1.0})]
    assert post_process_rewards(arguments(reward_key="tests"), samples) == ([1.0, 0.0], [0.5, -0.5])
    with pytest.raises(ValueError, match=r"sample 0 \(index 0\): reward must be a number, .* see --reward-key"):
        post_process_rewards(arguments(), samples)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage_estimator": "ppo"}, "--advantage-estimator ppo: .* use one of grpo, gspo, cispo"),
        ({"normalize_advantages": True}, "--normalize-advantages: would undo the credit step"),
        ({"gagar": {"capp": 1}}, "gagar.capp: unknown field"),
    ],
)
def test_arguments_that_would_spoil_the_advantages_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        post_process_rewards(arguments(**changes), [sample(0, 1.0), sample(1, 0.0)])


def test_a_sample_without_a_group_is_refused():
    with pytest.raises(ValueError, match=r"sample 1 \(index 9\): group_index is missing"):
        post_process_rewards(arguments(), [sample(0, 1.0), sample(9, 0.0, group=None)])


def test_the_example_of_the_documentation():
    found = {"passed": lambda sample: float(sample.index < 2), "grade": lambda sample: [1.0, 0.4][sample.index]}
    exec(block("slime"), found)
    samples = [sample(index, None, group=3) for index in range(3)]
    for each, reward in zip(samples, asyncio.run(found["reward"](arguments(), samples)), strict=True):
        each.reward = reward
    raw, advantages = found["post_process"](arguments(), samples)
    assert raw == [1.0, 1.0, 0.0]
    assert advantages == by_hand({0: 1.0, 1: 0.4}, raw)
