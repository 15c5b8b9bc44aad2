from pathlib import Path

import pytest

from gagar_mcore.config.load import RecipeError, dump_recipe, load_recipe


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return str(path)


MINIMAL = "name: x\noutput: runs/x\nmodel: {init: tiny}\n"


def test_shipped_recipes_load_by_name() -> None:
    assert load_recipe("tiny").name == "tiny"


def test_a_dumped_recipe_loads_to_itself(tmp_path: Path) -> None:
    recipe = load_recipe("tiny", ["rollout.group_size=4", "trainer.loss.positive_bounds=[0.1, 3]"])
    assert load_recipe(write(tmp_path, dump_recipe(recipe))) == recipe


def test_overrides_are_typed_and_nested() -> None:
    recipe = load_recipe(
        "tiny", ["trainer.optimizer.lr=1e-3", "tracking.wandb=off", "method.cap=null", "trainer.optimizer.eps=0.5"]
    )
    assert recipe.trainer.optimizer.lr == 0.001
    assert recipe.method.cap is None
    assert recipe.tracking.wandb == "off"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (MINIMAL + "rollot: {}\n", [], "rollot: unknown field"),
        (MINIMAL, ["rollout.group_size=1"], "rollout.group_size: .*greater than or equal to 2, got 1"),
        (MINIMAL, ["rollout.group_size=abc"], "rollout.group_size: .*valid integer"),
        (MINIMAL, ["rollout.group_size=true"], "rollout.group_size: .*valid integer"),
        (MINIMAL, ["trainer.tp"], "write it as section.field=value"),
        (MINIMAL, ["name.x=1"], "name is a value, not a section"),
        (MINIMAL, ["method.cap=[1"], "not valid YAML"),
        (MINIMAL, ["method.cap=.nan"], "method.cap"),
        ("name: x\noutput: y\n", [], "model: required and missing"),
        ("- 1\n", [], "mapping of sections"),
        ("a: [", [], "not valid YAML"),
        ("", [], "mapping of sections"),
    ],
)
def test_mistakes_are_named_with_file_and_field(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, text), overrides)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(RecipeError, match=r"r\.yaml: not UTF-8 text"):
        load_recipe(str(tmp_path / "r.yaml"))


def test_every_mistake_is_listed_on_a_line_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, MINIMAL), ["trainer.tp=0", "rollout.nope=1"])
    assert len(str(caught.value).splitlines()) == 2


def test_an_unknown_recipe_names_the_shipped_ones() -> None:
    with pytest.raises(RecipeError, match=r"no such file and no shipped recipe.*tiny"):
        load_recipe("no-such-recipe")


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3", "+1E-3"])
def test_floats_are_numbers_in_every_notation(text: str) -> None:
    assert load_recipe("tiny", [f"trainer.optimizer.lr={text}"]).trainer.optimizer.lr == 0.001


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'name' is given twice"):
        load_recipe(write(tmp_path, MINIMAL + "name: y\n"))
