"""The engines of a recipe's policy."""

from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.controller.serving import policy_serving
from gagar_mcore.engine.attach import find_addresses
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.fleet import Fleet
from gagar_mcore.engine.member import RESTARTS, MortalEngine, Start
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.engine.sglang import attach_sglang, start_sglang


async def start_engine(recipe: Recipe, log: Path, weights: Path, version: int) -> Engine:
    """All that the recipe names behind one. log: of what a run starts itself. Raises EngineError where none starts."""
    section = recipe.engine
    fleet = Fleet(
        partial(_found, recipe, log),
        weights,
        version,
        room=section.max_batch + section.server.queue,
        patience_s=section.start_timeout_s,
        restarts=RESTARTS if section.server.attach is None else inf,
    )
    await fleet.start()
    return fleet


def _found(recipe: Recipe, log: Path) -> Mapping[str, Start]:
    server = recipe.engine.server
    if recipe.engine.kind == "embedded":
        return {"embedded": partial(_embedded, recipe, log)}
    if server.attach is not None:
        return {str(file): partial(_attached, recipe, file) for file in find_addresses(server.attach)}
    logs = [log, *(log.with_stem(f"{log.stem}-{number}") for number in range(1, server.count))]
    return {str(own): partial(_started, recipe, own, number) for number, own in enumerate(logs)}


async def _embedded(recipe: Recipe, log: Path, weights: Path, version: int) -> MortalEngine:
    return await start_embedded(
        weights,
        version,
        recipe.engine,
        log,
        max_context=recipe.rollout.max_context,
        deterministic=recipe.deterministic,
        record_experts=recipe.trainer.routing == "replay",
    )


async def _attached(recipe: Recipe, file: Path, weights: Path, version: int) -> MortalEngine:
    return await attach_sglang(file, policy_serving(recipe, weights, version), recipe.engine)


async def _started(recipe: Recipe, log: Path, number: int, weights: Path, version: int) -> MortalEngine:
    return await start_sglang(policy_serving(recipe, weights, version), recipe.engine, log, number)
