from pathlib import Path

import pytest

from gagar_mcore.config.load import RecipeError, dump_recipe, load_recipe

PODS = [
    "sandbox.backend=kubernetes",
    "sandbox.kubernetes.namespace=sandboxes",
    "sandbox.kubernetes.init_image=registry.test/init:1",
    "sandbox.kubernetes.image=registry.test/task:1",
]


def test_pods_have_the_defaults_of_the_pool():
    from gagar_sandbox.kubernetes.settings import PodSettings, PoolSettings

    section = load_recipe("tiny", PODS).sandbox.kubernetes
    assert section is not None
    pods = PodSettings("sandboxes", "registry.test/init:1", "registry.test/task:1", "gagar", "a")
    assert PodSettings(**section.fields_of(PodSettings), run="a") == pods
    assert PoolSettings(**section.fields_of(PoolSettings), concurrency=4) == PoolSettings(4)


def test_a_dumped_recipe_of_pods_loads_to_itself(tmp_path: Path):
    recipe = load_recipe("tiny", [*PODS, "sandbox.kubernetes.tolerations=[{key: a, operator: Exists}]"])
    (tmp_path / "r.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(str(tmp_path / "r.yaml")) == recipe


def test_containers_have_the_defaults_of_the_pool():
    from gagar_sandbox.container import ContainerSettings

    recipe = load_recipe("tiny", ["sandbox.backend=container", "sandbox.container={}"])
    assert recipe.sandbox.container is not None
    assert ContainerSettings("a", **dict(recipe.sandbox.container)) == ContainerSettings("a")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (PODS[1:], "sandbox.kubernetes: has no effect on local"),
        (["sandbox.container.image=a"], "sandbox.container: has no effect without"),
        ([*PODS, "sandbox.backend=container"], "sandbox.kubernetes: has no effect on container"),
        (PODS[:1], "sandbox.kubernetes: required where sandbox.backend=kubernetes"),
        (PODS[:3], "sandbox.kubernetes.image: required and missing"),
        ([*PODS, "sandbox.kubernetes.namespace=Sand_boxes"], "sandbox.kubernetes.namespace"),
        ([*PODS, "sandbox.kubernetes.cpu=half"], "sandbox.kubernetes.cpu"),
        ([*PODS, "agent.kind=command", "agent.command=[a]"], "agent.kind: command reaches the policy by a socket"),
    ],
)
def test_mistakes(overrides: list[str], message: str):
    with pytest.raises(RecipeError, match=message):
        load_recipe("tiny", overrides)
