import pytest
import torch

from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.presets import preset
from gagar_mcore.models.shards import GateUp, GroupedQkv, Sharded
from gagar_mcore.models.weight_map import tensor_shapes, weight_rules

TINY = preset("tiny")


@pytest.mark.parametrize("tp", [1, 2])
def test_every_rule_gives_back_the_tensors_it_was_split_from(tp):
    read = random_tensors(TINY, seed=3)
    for rule in weight_rules(TINY):
        tensors = [read(name) for name in rule.tensors]
        merged = rule.form.merge(rule.form.split(tensors, tp))
        for name, before, after in zip(rule.tensors, tensors, merged, strict=True):
            assert torch.equal(before, after), name


def test_the_rules_cover_every_tensor_once():
    names = [name for rule in weight_rules(TINY) for name in rule.tensors]

    assert sorted(names) == sorted(tensor_shapes(TINY))


def test_a_rank_holds_whole_key_value_groups_each_with_queries_key_and_value():
    query, key, value = (torch.arange(n)[:, None] + base for n, base in ((8, 0), (4, 100), (2, 200)))
    second = GroupedQkv(groups=2, rows=(4, 2, 1)).split([query, key, value], 2)[1]

    assert second.flatten().tolist() == [4, 5, 6, 7, 102, 103, 201]


def test_gate_and_up_are_cut_each_by_itself():
    gate, up = torch.arange(4)[:, None], torch.arange(4)[:, None] + 10

    assert GateUp().split([gate, up], 2)[1].flatten().tolist() == [2, 3, 12, 13]


def test_columns_are_cut_along_their_dimension():
    assert Sharded(1).split([torch.arange(4)[None]], 2)[1].tolist() == [[2, 3]]


def test_random_weights_depend_on_seed_and_name_alone():
    one, again, other = random_tensors(TINY, 1), random_tensors(TINY, 1), random_tensors(TINY, 2)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    again("lm_head.weight")

    assert torch.equal(one(name), again(name))
    assert not torch.equal(one(name), other(name))
    assert abs(float(one(name).std()) - TINY.init_std) < 0.002
    assert one("model.norm.weight").eq(1).all()
    assert one("model.layers.1.mlp.gate.e_score_correction_bias").eq(0).all()
