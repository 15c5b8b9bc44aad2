"""`gagar serve`: SGLang's server of a recipe's policy or grader, until it is told to stop."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.controller.run import initial_checkpoint
from gagar_mcore.controller.serving import grader_serving, policy_serving
from gagar_mcore.engine.attach import receiver_beside, write_address
from gagar_mcore.engine.http import Endpoint
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.server import ServerProcess, start_server
from gagar_mcore.engine.sglang_flags import Role, Serving
from gagar_mcore.engine.sidecar.forward import Forwarder
from gagar_mcore.engine.sidecar.strip import Stripper
from gagar_mcore.records.expert_store import ExpertStore
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
        async with (
            _running(serving, section, layout.logs / f"{name}-server.log") as server,
            _before(server, serving, section, layout.new_experts(name)) as endpoint,
        ):
            with receiving(receiver_beside(address)), write_address(address, endpoint):
                print(f"{name}: {serving.weights} on {endpoint.url}, keys in {address}", flush=True)
                await asyncio.shield(server.ended)
                raise EngineError(server.obituary())


def _orders(recipe: Recipe, role: Role) -> tuple[Serving, EngineSection]:
    """A policy starts with its initial weights; the run that uses it loads those that it has."""
    if role == "grader":
        return grader_serving(recipe), recipe.grading.engine
    return policy_serving(recipe, initial_checkpoint(recipe), 0), recipe.engine


@asynccontextmanager
async def _running(serving: Serving, section: EngineSection, log: Path) -> AsyncIterator[ServerProcess]:
    if serving.record_experts:  # the port that the recipe names is the sidecar's
        section = section.model_copy(update={"server": section.server.model_copy(update={"port": 0})})
    server = await start_server(serving, section, log)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def _before(server: ServerProcess, serving: Serving, section: EngineSection, experts: Path) -> AsyncIterator[Endpoint]:
    """Where the server is to be asked: at a sidecar, where it tells of experts, which are stored below `experts`."""
    if not serving.record_experts:
        yield server.endpoint
        return
    sidecar = Forwarder(server.endpoint.url, Stripper(serving.model, ExpertStore(experts)))
    try:
        try:
            port = await sidecar.start(section.server.host, section.server.port)
        except OSError as error:
            raise EngineError(f"engine.server.port: {section.server.port}: {error.strerror}; name a free one, or 0") from error
        yield replace(server.endpoint, url=f"http://{section.server.host}:{port}")
    finally:
        await sidecar.close()


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
