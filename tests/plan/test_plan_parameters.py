from dataclasses import fields

import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.parameters import count_parameters
from gagar_mcore.models.presets import PRESETS, preset
from gagar_mcore.plan.parameters import mean_parameters, parameters_on_rank, stage_members

LAYOUTS = [
    {"tp": 1, "ep": 1},
    {"tp": 4, "ep": 16, "pp": 4, "cp": 2, "dp": 2},
    {"tp": 2, "ep": 8, "etp": 2, "pp": 2, "vpp": 2, "dp": 8},
]


@pytest.mark.parametrize("name", ["mini", "mimo-v2-flash", "mimo-v2.6-pro", "qwen3-30b-a3b"])
@pytest.mark.parametrize("sizes", LAYOUTS)
def test_the_ranks_together_hold_the_model(name, sizes):
    """Each part as often as the layout copies it: router and norms are whole on each rank of TP."""
    model, layout = preset(name), TrainerSection(**sizes)
    stages = [parameters_on_rank(model, layout, stage) for stage in range(layout.pp)]
    whole = count_parameters(model)
    for kind in fields(whole):
        copies = {"router": 1, "norms": 1, "experts": layout.ep * layout.etp}.get(kind.name, layout.tp)
        if kind.name == "mtp":
            continue  # split and whole parts together
        assert copies * sum(getattr(stage, kind.name) for stage in stages) == getattr(whole, kind.name), kind.name


def test_pro_leaves_a_layer_less_to_the_stages_of_embedding_and_loss():
    counts = [len(stage_members(70, 8, 1, stage)) for stage in range(8)]
    assert counts == [8, 9, 9, 9, 9, 9, 9, 8]


def test_interleaved_stages_take_turns():
    assert [stage_members(4, 2, 2, stage) for stage in range(2)] == [[0, 2], [1, 3]]


def test_mtp_layers_are_on_the_last_stage():
    layout = TrainerSection(tp=4, ep=16, pp=4, cp=2, dp=2)
    counts = [parameters_on_rank(preset("mimo-v2-flash"), layout, stage).mtp for stage in range(4)]
    whole = count_parameters(preset("mimo-v2-flash")).mtp
    assert counts[:3] == [0, 0, 0] and whole / 4 < counts[3] < whole / 4 * 1.001


@pytest.mark.parametrize("name", PRESETS)
def test_one_rank_holds_everything(name):
    assert parameters_on_rank(preset(name), TrainerSection(tp=1, ep=1), 0) == count_parameters(preset(name))


def test_the_mean_stage():
    layout = TrainerSection(tp=4, ep=16, pp=4, cp=2, dp=2)
    mean, whole = mean_parameters(preset("mimo-v2-flash"), layout), count_parameters(preset("mimo-v2-flash"))
    assert mean.experts * 4 * 16 == whole.experts and mean.embeddings * 4 * 4 == whole.embeddings
