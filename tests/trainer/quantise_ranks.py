"""What ranks compute with where their weights are quantised."""

from functools import partial
from pathlib import Path
from typing import Any

from conftest import random_batch
from rank_checks import change_layout, loaded_policy
from torch import Tensor

from gagar_mcore.config.load import load_recipe

FORMATS = ("fp8", "mxfp4")
PRECISIONS = ("fp32", "bf16")


def quantised(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """`[format, precision]`: whole tensors before, during and after passes with quantised weights, and after a step with them
    whose learning rate is 0. `quantised-FORMAT-PRECISION` is what is published of the same weights."""
    return {(format, precision): in_format(root, format, precision) for format in FORMATS for precision in PRECISIONS}


def in_format(root: Path, format: str, precision: str) -> dict[str, Any]:
    from gagar_mcore.trainer import policy as steps
    from gagar_mcore.trainer.publish import publish_new, write_shards
    from gagar_mcore.trainer.quantise import pass_weights
    from gagar_mcore.trainer.shards import local_tensors
    from gagar_mcore.weights.files import read_companions
    from gagar_mcore.weights.storage import Storage

    fields = [f"trainer.precision={precision}", f"trainer.quantise={format}", f"publish.format={format}"]
    recipe = load_recipe(str(root / "run" / "recipe.yaml"), [*fields, "trainer.optimizer.lr=0"])
    change_layout(recipe.trainer)
    policy = loaded_policy(root / "checkpoint", recipe)
    storage = Storage(policy.model, format)
    write = partial(write_shards, local_tensors(policy.chunks), storage, 200_000)
    companions = storage.companions(read_companions(root / "checkpoint"))
    publish_new(root / f"quantised-{format}-{precision}", "weights", write, companions, {})
    found: dict[str, Any] = {"before": whole(policy)}
    with pass_weights(policy, recipe.trainer):
        found["during"] = whole(policy)
    found["after"] = whole(policy)
    seen: list[dict[str, Tensor]] = []
    gradients = steps.accumulate_gradients

    def watched(policy: Any, *rest: Any) -> Any:
        seen.append(whole(policy))
        return gradients(policy, *rest)

    steps.accumulate_gradients = watched
    found["metrics"] = steps.apply_batch(policy, random_batch(0), recipe, 1)
    steps.accumulate_gradients = gradients
    return found | {"stepped": whole(policy), "in the step": seen[0]}


def whole(policy: Any) -> dict[str, Tensor]:
    from gagar_mcore.trainer.shards import gather_tensors, local_tensors

    return {name: tensor.clone() for name, tensor in gather_tensors(local_tensors(policy.chunks), policy.model)}
