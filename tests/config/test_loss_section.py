import pytest

from gagar_mcore.config.learning import LossSection
from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.ops.spec import DEFAULT_BOUNDS, LossSpec


def test_the_default_is_the_reported_loss():
    section = LossSection()
    assert (section.name, section.old, section.aggregation) == ("mimo", "rollout", "prompt-mean")
    assert section.spec() == LossSpec("mimo")
    assert section.spec().bounds == ((0.2, 5.0), (0.2, 5.0))


@pytest.mark.parametrize("name", DEFAULT_BOUNDS)
def test_every_loss_has_bounds_of_its_own(name):
    spec = LossSection(name=name).spec()
    assert spec.bounds == (DEFAULT_BOUNDS[name], DEFAULT_BOUNDS[name])


def test_every_constant_reaches_the_loss():
    constants = dict(name="ppo", positive_bounds=(0.7, 1.3), negative_bounds=(0.9, 1.1), dual_clip=None, tis_cap=2.0)
    assert LossSection(old="current", **constants).spec() == LossSpec(**constants)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["name=reinforce"], r"trainer\.loss\.name: .*'mimo', 'ppo', 'gspo' or 'cispo'"),
        (["aggregation=mean"], r"trainer\.loss\.aggregation: .*'token-mean'"),
        (["old=mine"], r"trainer\.loss\.old: .*'rollout' or 'current'"),
        (["positive_bounds=[1.1, 2]"], r"trainer\.loss: positive_bounds: must enclose 1"),
        (["negative_bounds=[0.5, .inf]"], r"trainer\.loss\.negative_bounds\.1: .*finite number"),
        (["negative_bounds=[-0.5, 2]"], r"trainer\.loss: negative_bounds: must enclose 1"),
        (["positive_bounds=[0.5]"], r"trainer\.loss\.positive_bounds\.1: required"),
        (["name=ppo", "dual_clip=1"], r"trainer\.loss: dual_clip: must be a finite number above 1"),
        (["name=ppo", "dual_clip=true"], r"trainer\.loss\.dual_clip: .*valid number"),
        (["name=ppo", "old=current", "tis_cap=0"], r"trainer\.loss: tis_cap: is a finite number above 0"),
        (["name=ppo", "old=current", "tis_cap=2x"], r"trainer\.loss\.tis_cap: .*valid number"),
        (["tis_cap=2"], r"trainer\.loss: tis_cap: .*mimo"),
        (["name=gspo", "tis_cap=2"], r"trainer\.loss: tis_cap: has no effect where old=rollout"),
        (["old=current"], r"trainer\.loss: old: mimo takes its ratio to the rollout"),
        (["kl_coef=-0.1"], r"trainer\.loss\.kl_coef: .*greater than or equal to 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_with_its_field(overrides, message):
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe("tiny", [f"trainer.loss.{override}" for override in overrides])
    assert len(str(caught.value).splitlines()) == 1
