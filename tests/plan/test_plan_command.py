import json

import pytest

from gagar_mcore.config.load import RecipeError
from gagar_mcore.plan.command import plan_recipe
from gagar_mcore.plan.gpus import GPUS
from gagar_mcore.plan.plan import plan_layout
from gagar_mcore.plan.source import read_source, recipe_model
from gagar_mcore.plan.workload import recipe_workload
from gagar_mcore.trainer.layout import check_layout

LAYOUT = ["trainer.tp=4", "trainer.pp=4", "trainer.ep=16", "trainer.cp=2"]


def plan(capsys, name: str, *overrides: str, **options) -> dict:
    defaults = {"gpus": None, "gpu": None, "context": None, "mean": False, "as_json": True}
    fits = plan_recipe(name, overrides, **{**defaults, **options})
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] == fits
    return data


@pytest.mark.parametrize(("name", "gpus", "stages"), [("flash-310b", 128, 4), ("pro-1t", 256, 8)])
def test_the_shipped_recipes_fit(name, gpus, stages):
    recipe, fixed = read_source(name, [])
    assert fixed and (recipe.trainer.world_size, recipe.trainer.pp) == (gpus, stages)
    model, gpu = recipe_model(recipe), GPUS["h200"]
    check_layout(recipe.trainer, model)
    assert plan_layout(model, recipe.trainer, recipe_workload(recipe), gpu).misfit is None


@pytest.mark.parametrize("name", ["mimo-v2.6-flash", "mimo-v2.6-pro"])
def test_a_million_tokens_have_an_answer(capsys, name):
    data = plan(capsys, name, context=1 << 20)
    assert data["fits"] and data["remarks"] == []
    assert data["plan"]["layout"]["cp"] >= 8 and data["plan"]["tokens_at_once"] * data["plan"]["layout"]["cp"] == 1 << 20
    assert plan(capsys, "mimo-v2-flash", context=1 << 20, gpus=128)["remarks"]  # beyond its positions


def test_mean_stage_is_the_published_account(capsys):
    data = plan(capsys, "mimo-v2-flash", *LAYOUT, gpus=64, mean=True)
    assert data["plan"]["stage"] == "mean" and data["plan"]["layout"]["dp"] == 2
    assert data["plan"]["memory"]["total"] == pytest.approx(98e9, rel=0.05)


def test_a_layout_that_does_not_fit_says_why_and_what_would(capsys):
    data = plan(capsys, "mimo-v2-flash", *LAYOUT, gpus=64, gpu="h100")
    assert not data["fits"] and "more than the 72 GB" in data["plan"]["misfit"]
    assert data["layouts"] and data["verdict"].endswith("another layout below does")
    few = plan(capsys, "mimo-v2-flash", gpus=8)
    assert few["plan"] is None and few["layouts"] == [] and few["enough_gpus"] == 64


def test_tables_name_what_json_does(capsys):
    options = {"gpus": None, "gpu": None, "context": None, "mean": False, "as_json": False}
    assert plan_recipe("tiny", [], **options)
    text = capsys.readouterr().out
    for word in ("TP 2", "router", "a node", "bubble", "mxfp4", "layouts that fit 2 h200"):
        assert word in text


@pytest.mark.parametrize(
    ("name", "overrides", "gpus", "message"),
    [
        ("nope", [], None, "nope: no such file, and neither a shipped recipe nor a preset; there are: .*tiny.*mimo-v2.6-pro"),
        ("mimo-v2-flash", LAYOUT, 48, "trainer: tp . pp . cp = 32 does not divide 48 GPUs"),
        ("mimo-v2-flash", [], 10**9, "gpus: 1000000000 .* are more than the .* of a plan; take fewer"),
        ("tiny", ["trainer.dp=1000000000"], None, "gpus: 2000000000 .* are more than the .* of a plan"),
        ("tiny", ["trainer.pp=1000000000"], None, "trainer.pp: 1000000000 stages leave one without any of the 4 layers"),
        ("mimo-v2-flash", ["trainer.tp=8"], None, "trainer.tp: 8 does not divide the 4 key-value heads"),
        ("tiny", ["model.init=/nowhere"], None, "model.init: /nowhere: no directory with a config.json.*set model.preset"),
        ("tiny", ["model.preset=huge"], None, "'huge' is unknown; choose one of tiny"),
    ],
)
def test_mistakes_are_one_line(name, overrides, gpus, message):
    with pytest.raises(RecipeError, match=message):
        plan_recipe(name, overrides, gpus=gpus, gpu=None, context=None, mean=False, as_json=True)


def test_a_preset_takes_the_place_of_a_checkpoint_that_is_not_at_hand(capsys):
    data = plan(capsys, "tiny", "model.init=/nowhere", "model.preset=mini")
    assert data["parameters"]["model"] > 1e9
