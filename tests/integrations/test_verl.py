"""The estimator inside verl itself; `make test-verl` runs these in the environment that has it."""

import os
import shlex
import subprocess
import sys
from random import Random

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed here; make test-verl")

import torch
from doc_blocks import PAGE, block
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.ray_trainer import compute_advantage

from gagar_mcore.credit import CreditParams, FactorVerdict, compute_credit
from gagar_mcore.integrations import verl as gagar
from gagar_mcore.integrations.rows import Notes, Row

WIDTH = 4
CONFIG = AlgoConfig(adv_estimator="gagar")
REWARDS = [1.0, 1.0, 1.0, 0.0]
FACTORS = [1.0, 0.85, 0.2, float("nan")]


def batch(rewards, uids, lengths=None, dtype=torch.float32, **fields):
    """Rewards lie on the last response token, as verl puts them."""
    lengths = lengths or [WIDTH] * len(rewards)
    mask = (torch.arange(WIDTH) < torch.tensor(lengths).unsqueeze(-1)).long()
    scores = torch.zeros(len(rewards), WIDTH, dtype=dtype)
    for row, reward in enumerate(rewards):
        scores[row, max(lengths[row] - 1, 0)] = reward
    columns = {"uid": np.array(uids, dtype=object), **{name: np.array(values) for name, values in fields.items()}}
    return DataProto.from_dict(tensors={"token_level_rewards": scores, "response_mask": mask}, non_tensors=columns)


def advantages(data, config=CONFIG):
    """One number a row, out of verl's own computation, and the metrics."""
    with gagar.columns(data.non_tensor_batch) as metrics:
        found = compute_advantage(data, adv_estimator="gagar", config=config).batch
    mask = found["response_mask"].bool()
    assert found["advantages"].dtype == torch.float32
    assert torch.equal(found["advantages"], found["returns"])
    assert not found["advantages"][~mask].any()
    values = [set(row[kept].tolist()) for row, kept in zip(found["advantages"], mask, strict=True)]
    assert all(len(value) <= 1 for value in values)
    return [value.pop() if value else 0.0 for value in values], metrics


def by_hand(rewards=REWARDS, factors=FACTORS, params=None):
    rows = [Row("g", str(i), reward, Notes()) for i, reward in enumerate(rewards)]
    verdict = FactorVerdict({row.id: f for row, f in zip(rows, factors, strict=True) if row.reward > 0})
    return list(compute_credit(rows, verdict, params or CreditParams()).advantages.values())


def test_verl_finds_the_estimator_by_its_name():
    assert get_adv_estimator_fn("gagar") is gagar.compute_gagar_advantage


def test_verl_imports_it_when_told_to_by_the_environment():
    code = "import verl; from verl.trainer.ppo.core_algos import get_adv_estimator_fn as f; print(f('gagar').__module__)"
    environment = os.environ | {"VERL_USE_EXTERNAL_MODULES": "gagar_mcore.integrations.verl"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.splitlines()[-1] == "gagar_mcore.integrations.verl"


def test_verl_computes_the_advantages_of_the_credit_step():
    found, metrics = advantages(batch(REWARDS, ["u"] * 4, gagar_factor=FACTORS))
    assert found == pytest.approx(by_hand(), rel=1e-6)
    assert metrics["gagar/kept"] == 1
    assert metrics["gagar/lambda_mean"] == pytest.approx(compute_lambda(), rel=1e-6)


def compute_lambda():
    return min(3 / (1.0 + 0.85 + 0.2), 1.5)


def test_groups_may_lie_anywhere_in_the_batch():
    order = Random(1).sample(range(8), 8)
    rewards, factors = [*REWARDS, 0.0, 1.0, 0.0, 0.0], [*FACTORS, np.nan, 0.3, np.nan, np.nan]
    uids = ["u"] * 4 + ["v"] * 4
    data = batch(*([values[i] for i in order] for values in (rewards, uids)), gagar_factor=[factors[i] for i in order])
    expected = [*by_hand(), *by_hand(rewards[4:], factors[4:])]
    found, metrics = advantages(data)
    assert found == pytest.approx([expected[i] for i in order], rel=1e-6)
    assert metrics["gagar/kept"] == 2


@pytest.mark.parametrize("uids", [[7] * 4, [np.str_("u")] * 4, [np.int64(3)] * 4], ids=["int", "numpy string", "numpy int"])
def test_uids_of_other_types(uids):
    assert advantages(batch(REWARDS, uids, gagar_factor=FACTORS))[0] == pytest.approx(by_hand(), rel=1e-6)


def test_tokens_after_the_response_get_nothing():
    data = batch(REWARDS, ["u"] * 4, lengths=[1, 2, 3, 4], gagar_factor=FACTORS)
    assert advantages(data)[0] == pytest.approx(by_hand(), rel=1e-6)
    assert data.batch["advantages"].count_nonzero().item() == 1 + 2 + 3 + 4


def test_tokens_of_tools_get_nothing_and_their_reward_counts():
    data = batch([1.0, 0.0], ["u"] * 2)
    data.batch["response_mask"][:, 1:] = torch.tensor([0, 1, 0])
    assert advantages(data)[0] == [0.5, -0.5]
    assert data.batch["advantages"][0].tolist() == [0.5, 0.0, 0.5, 0.0]


def test_padding_rows_are_in_no_group():
    data = batch([*REWARDS, 0.0, 0.0], ["u"] * 4 + ["pad"] * 2, lengths=[4, 4, 4, 4, 0, 0], gagar_factor=[*FACTORS, 0.0, 0.0])
    found, metrics = advantages(data)
    assert found == pytest.approx([*by_hand(), 0.0, 0.0], rel=1e-6)
    assert metrics["gagar/groups"] == 1
    assert advantages(batch([0.0], ["pad"], lengths=[0]))[0] == [0.0]


def test_rewards_in_bfloat16_and_between_pass_and_fail():
    rewards, factors = [1.0, 0.5, 0.25, 0.0], [1.0, 0.5, 0.5, np.nan]
    found, _ = advantages(batch(rewards, ["u"] * 4, dtype=torch.bfloat16, gagar_factor=factors))
    assert found == pytest.approx(by_hand(rewards, factors), rel=1e-6)


def test_an_invalid_row_a_hack_and_dropped_groups():
    data = batch(
        [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0],
        ["u", "u", "u", "u", "all", "all", "one"],
        gagar_hack=[False, True, False, False, False, False, False],
        gagar_factor=[1.0, np.nan, np.nan, np.nan, 1.0, 0.5, 1.0],
        gagar_valid=[True, True, True, False, True, True, True],
    )
    found, metrics = advantages(data)
    assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0, 0.0, 0.0, 0.0])
    counted = ("gagar/kept", "gagar/invalid_trajectories", "gagar/dropped/all_pass", "gagar/dropped/too_few_valid")
    assert [metrics[name] for name in counted] == [1, 1, 1, 1]


def test_an_unusable_verdict_falls_back_to_the_outcome():
    found, metrics = advantages(batch(REWARDS, ["u"] * 4, gagar_factor=[1.0, 0.85, 7.0, np.nan]))
    assert found == [0.25, 0.25, 0.25, -0.75]
    assert metrics["gagar/fallback/invalid"] == 1


def test_without_columns_the_outcome_advantages_stand(caplog):
    found = compute_advantage(batch(REWARDS, ["u"] * 4), adv_estimator="gagar", config=CONFIG).batch["advantages"]
    assert found[:, 0].tolist() == [0.25, 0.25, 0.25, -0.75]
    assert "fallback/no verdict 1" in caplog.text


def test_segments_of_one_trajectory_by_member():
    rewards, member = [1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "c"]
    found, _ = advantages(batch(rewards, ["u"] * 4, gagar_member=member, gagar_factor=[1.0, 1.0, np.nan, np.nan]))
    assert found == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3])


def test_a_caller_may_pass_the_fields_itself():
    data = batch(REWARDS, ["u"] * 4, gagar_factor=FACTORS)
    found, _ = get_adv_estimator_fn("gagar")(
        token_level_rewards=data.batch["token_level_rewards"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        non_tensor_batch=data.non_tensor_batch,
    )
    assert found[:, 0].tolist() == pytest.approx(by_hand(), rel=1e-6)


def test_constants_come_from_the_algorithm_section():
    config = OmegaConf.create({"adv_estimator": "gagar", "use_kl_in_reward": False, "gagar": {"cap": None, "weights": [0.2] * 5}})
    data = batch([1.0, 1.0, 0.0], ["u"] * 3, gagar_factor=[1.0, 0.2, np.nan])
    expected = by_hand([1.0, 1.0, 0.0], [1.0, 0.2, 0.0], CreditParams(cap=None))
    assert advantages(data, config)[0] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"gagar\.capp: unknown field"):
        advantages(data, OmegaConf.create({"gagar": {"capp": 2}}))


def test_constants_from_the_command_line_of_the_documentation():
    _, _, command = PAGE.read_text().partition("python -m verl.trainer.main_ppo")
    overrides = shlex.split(command.partition("...")[0].replace("\\\n", ""))
    assert "algorithm.adv_estimator=gagar" in overrides
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides).algorithm
    found, metrics = advantages(batch([1.0, 1.0, 0.0], ["u"] * 3, gagar_factor=[1.0, 0.2, np.nan]), config)
    assert found == pytest.approx(by_hand([1.0, 1.0, 0.0], [1.0, 0.2, 0.0], CreditParams(cap=2.0)), rel=1e-6)
    assert metrics["gagar/lambda_mean"] == pytest.approx(2 / 1.2)


def test_what_makes_no_sense_is_refused_by_name():
    data = batch(REWARDS, ["u"] * 4)
    with pytest.raises(ValueError, match=r"algorithm\.use_kl_in_reward"):
        advantages(data, AlgoConfig(adv_estimator="gagar", use_kl_in_reward=True))
    with pytest.raises(ValueError, match="group 'u': trajectory 'row 3': reward must be a number from 0 to 1, got -1"):
        advantages(batch([1.0, 1.0, 1.0, -1.0], ["u"] * 4))
    with (
        pytest.raises(ValueError, match="gagar_factor: 3 values for a batch of 4 rows"),
        gagar.columns({"gagar_factor": [1, 1, 1]}),
    ):
        compute_advantage(data, adv_estimator="gagar", config=CONFIG)
    del data.non_tensor_batch["uid"]
    with pytest.raises(ValueError, match="uid: missing"):
        advantages(data)


def test_the_example_of_the_documentation():
    found = {}
    exec(block("verl"), found)
    expected = by_hand([1.0, 1.0, 0.0], [1.0, 0.4, 0.0])
    assert [round(value, 3) for value in expected] == [0.476, 0.19, -0.667]
    assert found["advantages"].tolist() == [pytest.approx([value] * 2, rel=1e-6) for value in expected]
    assert found["metrics"]["gagar/kept"] == 1
