"""The trainer of docs/integrations.md, on verl's own `_compute_advantage`."""

import pytest

pytest.importorskip("verl", reason="verl is not installed here; make test-verl")

import torch
from doc_blocks import block
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls, trainer_base
from verl.utils.tensordict_utils import get_tensordict

KEYS = ["u_0_0", "v_0_0", "u_1_0", "u_1_1", "v_1_0", "pad_0_0", "u_2_0"]  # u_1 has two outputs, and verl fills up with padding
LENGTHS = [2, 3, 1, 2, 2, 1, 3]
REWARDS = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
FACTORS = {"u_0": 1.0, "u_1": 0.4, "v_0": 1.0}
U_0, U_1, U_2 = 1 / 2.1, 0.4 / 2.1, -2 / 3  # lambda 2 / 1.4, outcome advantages 1/3, 1/3, -2/3


class MemoryQueue:
    """A stand-in for the module `transfer_queue`, whose own store is a Ray actor: the two calls that the advantage step makes."""

    def __init__(self, fields):
        self.fields, self.written = fields, {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return get_tensordict({name: self.fields[name] for name in select_fields if name in self.fields})

    def kv_batch_put(self, keys, partition_id, fields):
        self.written.update(fields.items())
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys])


def ragged(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def queue():
    mask = [[0 if key.startswith("pad") else 1] * length for key, length in zip(KEYS, LENGTHS, strict=True)]
    scores = [[0.0] * (length - 1) + [reward] for length, reward in zip(LENGTHS, REWARDS, strict=True)]
    uids = [key.rsplit("_", 2)[0] for key in KEYS]
    return MemoryQueue({"uid": uids, "response_mask": ragged(mask), "rm_scores": ragged(scores)})


@pytest.fixture
def trainer(monkeypatch):
    monkeypatch.setattr(trainer_base, "TRAINER_REGISTRY", dict(trainer_base.TRAINER_REGISTRY))
    exec(block("verl trainer"), {"grade": lambda keys: [FACTORS.get(key.rsplit("_", 1)[0], float("nan")) for key in keys]})
    cls = get_trainer_cls("sync")
    assert issubclass(cls, PPOTrainerSync)
    assert cls is not PPOTrainerSync
    made = cls.__new__(cls)  # its constructor wants a cluster; the advantage step reads the configuration alone
    algorithm = {"adv_estimator": "gagar", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0}
    made.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 3}}})
    return made


def test_the_trainer_of_the_documentation(trainer, monkeypatch):
    store, metrics = queue(), {}
    monkeypatch.setattr(trainer_base, "tq", store)
    trainer._compute_advantage(KVBatchMeta(partition_id="train", keys=KEYS, tags=[{} for _ in KEYS]), metrics)
    expected = [U_0, 0.5, U_1, U_1, -0.5, 0.0, U_2]
    found = [row.tolist() for row in store.written["advantages"].unbind()]
    assert found == [[pytest.approx(value, rel=1e-6)] * length for value, length in zip(expected, LENGTHS, strict=True)]
    assert (metrics["gagar/groups"], metrics["gagar/kept"]) == (2, 2)
