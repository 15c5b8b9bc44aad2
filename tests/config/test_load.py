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
        (MINIMAL, ["agent.command=python"], r"agent\.command: must be a list, got 'python'"),
        (MINIMAL, ["simulate.turn=5"], r"simulate\.turn: must be a section with fields of its own, got 5"),
        (MINIMAL, ["rollout.group_size=true"], "rollout.group_size: .*valid integer"),
        (MINIMAL, ["trainer.tp=1000000001"], "trainer.tp: .*less than or equal to 1000000000"),
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


@pytest.mark.parametrize(
    "field",
    [
        *("trainer.optimizer.lr", "trainer.optimizer.weight_decay", "trainer.optimizer.clip_grad", "trainer.optimizer.beta1"),
        *("trainer.mtp_weight", "trainer.loss.kl_coef", "trainer.step_timeout_s", "engine.deadline_s", "rollout.temperature"),
        *(
            "rollout.oversample",
            "rollout.session_deadline_s",
            "grading.deadline_s",
            "sft.lr",
            "sft.context_weight",
            "method.kappa",
        ),
    ],
)
@pytest.mark.parametrize("value", [".inf", ".nan", "-1", "true", "'1'"])
def test_a_number_is_finite(field: str, value: str) -> None:
    with pytest.raises(RecipeError, match=f"^[^\n]*{field}: [^\n]*$"):
        load_recipe("tiny", [f"{field}={value}"])


@pytest.mark.parametrize("setting", ["eps=0", "eps=1e-40", "beta1=1", "beta2=1.5", "beta2=-0.1"])
def test_adam_would_divide_by_zero(setting: str) -> None:
    field, _, value = setting.partition("=")
    with pytest.raises(RecipeError, match=f"trainer.optimizer.{field}: .*, got {value}"):
        load_recipe("tiny", [f"trainer.optimizer.{setting}"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.mtp=train", "trainer.mtp_weight=0"], r"trainer: mtp_weight: 0 trains nothing"),
        (
            ["trainer.mtp=train", "model.preset=mini"],
            r"trainer\.mtp: train, but the model has no layers of multi-token prediction",
        ),
        (["model.family=qwen3_moe", "model.preset=tiny"], r"model\.family: qwen3_moe, but model\.preset tiny is of mimo_v2"),
        (["grading.grader=none"], r"grading\.grader: none gives method gagar no verdicts"),
        (["tasks.path=/tasks"], r"tasks\.path: has no effect"),
        (["tasks.heldout_count=0"], r"train\.eval_every: tasks\.heldout_count is 0"),
        (["trainer.max_tokens_per_sequence=499"], r"trainer\.max_tokens_per_sequence: 499 .* rollout\.max_context 500"),
        (["trainer.fp8=mxfp8"], r"trainer: fp8, .*need precision: bf16"),
        (["trainer.gradient_dtype=bf16"], r"trainer: .*gradient_dtype: bf16: need precision: bf16"),
        (
            ["trainer.optimizer.state_dtype=bf16", "trainer.optimizer.beta2=0.999"],
            r"trainer\.optimizer: state_dtype: .*set fp32 or lower the beta",
        ),
        (["engine.server.update=tensor", "engine.server.running=finish"], r"engine\.server: running: finish lets requests in"),
        (["trainer.quantise=fp8", "publish.format=mxfp4"], r"trainer\.quantise: fp8 is not what engines get"),
        (["deterministic=true", "rollout.partial=true"], r"rollout\.partial: which groups a step has would depend"),
        (["trainer.precision=bf16", "trainer.fp8=delayed"], r"trainer\.fp8: needs a GPU"),
        (
            ["trainer.device=cuda", "trainer.precision=bf16", "trainer.fp8=mxfp8", "cluster.gpu=h200"],
            r"trainer\.fp8: an h200 has no mxfp8",
        ),
        (["method.t2_best=0.3"], r"method: t2_best: below t2_worst"),
        (["method.t1_top=0.8"], r"method: t1_top: below t1_other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_fields_that_contradict_one_another(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe("tiny", overrides)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.mtp=train", "model.preset=mimo-v2-flash"],
        ["grading.grader=none", "method.name=grpo"],
        ["tasks.heldout_count=0", "train.eval_every=0"],
        ["trainer.max_tokens_per_sequence=499", "trainer.overlong=truncate"],
        ["trainer.max_tokens_per_sequence=500"],
    ],
    ids=" ".join,
)
def test_what_mends_a_contradiction(overrides: list[str]) -> None:
    load_recipe("tiny", overrides)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'name' is given twice"):
        load_recipe(write(tmp_path, MINIMAL + "name: y\n"))
