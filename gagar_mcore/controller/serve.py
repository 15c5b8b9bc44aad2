"""`gagar serve`: SGLang's server of a recipe's policy or grader, until it is told to stop."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.controller.run import initial_checkpoint
from gagar_mcore.controller.serving import grader_serving, policy_serving
from gagar_mcore.engine.attach import receiver_beside, write_address
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.server import ServerProcess, start_server
from gagar_mcore.engine.sglang_flags import Role, Serving
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.weights.receiver import receiving

NAME = r"[A-Za-z0-9-]{0,64}"
STOP = (signal.SIGINT, signal.SIGTERM)


def run_serve(role: Role, name: str, overrides: Sequence[str], server: str = "") -> None:
    """server: its name among several. Raises RecipeError, and EngineError where it does not start or ends by itself."""
    if not re.fullmatch(NAME, server):
        raise RecipeError(f"--name: {server!r}: letters, digits and dashes alone, at most 64")
    recipe = load_recipe(name, overrides)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(recipe, role, f"{role}-{server}" if server else role))


async def _serve(recipe: Recipe, role: Role, name: str) -> None:
    layout = RunLayout(Path(recipe.output).absolute())
    serving, section = _orders(recipe, role)
    address = layout.server(name)
    with _stopped_by_signals():
        async with _running(serving, section, layout.logs / f"{name}-server.log") as server:
            with receiving(receiver_beside(address)), write_address(address, server.endpoint):
                print(f"{name}: {serving.weights} on {server.endpoint.url}, keys in {address}", flush=True)
                await asyncio.shield(server.ended)
                raise EngineError(server.obituary())


def _orders(recipe: Recipe, role: Role) -> tuple[Serving, EngineSection]:
    """A policy starts with its initial weights; the run that uses it loads those that it has."""
    if role == "grader":
        return grader_serving(recipe), recipe.grading.engine
    return policy_serving(recipe, initial_checkpoint(recipe), 0), recipe.engine


@asynccontextmanager
async def _running(serving: Serving, section: EngineSection, log: Path) -> AsyncIterator[ServerProcess]:
    server = await start_server(serving, section, log)
    try:
        yield server
    finally:
        await server.close()


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """A signal cancels the task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in STOP:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in STOP:
            loop.remove_signal_handler(number)
