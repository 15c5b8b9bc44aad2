"""The pools of sandboxes of a run, on this machine or on a cluster."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.sandbox import KubernetesSection
from gagar_sandbox import LocalPool
from gagar_sandbox.types import SandboxPool, SandboxUnavailable


@dataclass(frozen=True, slots=True)
class Pools:
    """Sessions hold a sandbox while they wait for tokens; test runs keep a core busy. So each has a pool of its own."""

    sessions: SandboxPool
    tests: SandboxPool


def session_slots(recipe: Recipe) -> int:
    """How many sessions may hold a sandbox at once."""
    at_work = recipe.rollout.concurrent_groups * recipe.rollout.group_size
    return recipe.sandbox.concurrency or max(at_work, recipe.train.eval_samples)


@asynccontextmanager
async def open_pools(recipe: Recipe) -> AsyncIterator[Pools]:
    """Raises SandboxUnavailable."""
    sessions = session_slots(recipe) * (2 if recipe.agent.apart else 1)
    if recipe.sandbox.kubernetes is None:
        pools = Pools(LocalPool(sessions), LocalPool(recipe.verify.concurrency))
    else:
        tests = recipe.verify.concurrency or sessions
        section = recipe.sandbox.kubernetes
        claims = recipe.sandbox.backend == "agent-sandbox"
        opened = await _on_cluster(section, run_label(recipe, "sessions"), sessions, claims)
        try:
            pools = Pools(opened, await _on_cluster(section, run_label(recipe, "tests"), tests, claims))
        except BaseException:
            await opened.close()
            raise
    try:
        yield pools
    finally:
        await asyncio.gather(pools.sessions.close(), pools.tests.close())


def run_label(recipe: Recipe, purpose: str) -> str:
    """The same whenever this run is resumed, and another for every other output."""
    name = re.sub(r"[^a-z0-9]+", "-", recipe.name.lower()).strip("-")[:30] or "run"
    return f"{name}-{hashlib.sha256(str(Path(recipe.output).resolve()).encode()).hexdigest()[:10]}-{purpose}"


async def _on_cluster(section: KubernetesSection, run: str, concurrency: int, claims: bool) -> SandboxPool:
    try:
        from gagar_sandbox import agent_sandbox, kubernetes
    except ModuleNotFoundError as error:
        raise SandboxUnavailable(f"sandbox.backend: {error}; install gagar-mcore[kubernetes]") from error
    pods = kubernetes.PodSettings(**section.fields_of(kubernetes.PodSettings), run=run)
    settings = kubernetes.PoolSettings(**section.fields_of(kubernetes.PoolSettings), concurrency=concurrency)
    cluster = await kubernetes.configuration(section.kubeconfig, section.context)
    return await (agent_sandbox if claims else kubernetes).open_pool(pods, settings, cluster)
