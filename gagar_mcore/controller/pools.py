"""The pools of sandboxes of a run, on this machine or on a cluster."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gagar_mcore.config.recipe import Recipe
from gagar_mcore.config.sandbox import KubernetesSection
from gagar_sandbox import LocalPool
from gagar_sandbox.container import ContainerPool, ContainerSettings
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


def _silent(text: str) -> None:
    pass


@asynccontextmanager
async def open_pools(recipe: Recipe, *, locked: bool = False, message: Callable[[str], None] = _silent) -> AsyncIterator[Pools]:
    """locked: the run's directory is ours alone, so that pods of its name were left by an earlier process of ours and go.
    message: told what became of the pods. Raises SandboxUnavailable."""
    sessions = session_slots(recipe) * (2 if recipe.agent.apart else 1)
    section = recipe.sandbox.kubernetes
    if section is None:
        pools = _on_this_machine(recipe, sessions)
        try:
            yield pools
        finally:
            await asyncio.gather(pools.sessions.close(), pools.tests.close())
        return
    name = run_name(recipe) if locked else f"{run_name(recipe)}-{secrets.token_hex(3)}"
    on_cluster = partial(_on_cluster, section, recipe.sandbox.backend == "agent-sandbox", message)
    async with (
        on_cluster(f"{name}-sessions", sessions) as own,
        on_cluster(f"{name}-tests", recipe.verify.concurrency or sessions) as tests,
    ):
        yield Pools(own, tests)


def _on_this_machine(recipe: Recipe, sessions: int) -> Pools:
    if recipe.sandbox.backend == "container":
        own = ContainerSettings(f"{run_name(recipe)}-sessions", **dict(recipe.sandbox.container or ()))
        tests = replace(own, run=f"{run_name(recipe)}-tests")
        return Pools(ContainerPool(own, sessions), ContainerPool(tests, recipe.verify.concurrency or sessions))
    images = Path(recipe.sandbox.images) if recipe.sandbox.images else None
    return Pools(LocalPool(sessions, images=images), LocalPool(recipe.verify.concurrency, images=images))


def run_name(recipe: Recipe) -> str:
    """The same whenever this run is resumed, and another for every other output."""
    name = re.sub(r"[^a-z0-9]+", "-", recipe.name.lower())[:24].strip("-") or "run"
    return f"{name}-{hashlib.sha256(str(Path(recipe.output).resolve()).encode()).hexdigest()[:10]}"


@asynccontextmanager
async def _on_cluster(
    section: KubernetesSection, claims: bool, message: Callable[[str], None], run: str, concurrency: int
) -> AsyncIterator[SandboxPool]:
    try:
        from gagar_sandbox import agent_sandbox, kubernetes
    except ModuleNotFoundError as error:
        raise SandboxUnavailable(f"sandbox.backend: {error}; install gagar-mcore[kubernetes]") from error
    pods = kubernetes.PodSettings(**section.fields_of(kubernetes.PodSettings), run=run)
    settings = kubernetes.PoolSettings(**section.fields_of(kubernetes.PoolSettings), concurrency=concurrency)
    cluster = await kubernetes.configuration(section.kubeconfig, section.context)
    pool = await (agent_sandbox if claims else kubernetes).open_pool(pods, settings, cluster)
    try:
        yield pool
    finally:
        await pool.close()
        message(f"pods of {run}: {pool.summary}")
