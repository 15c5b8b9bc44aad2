"""Sandboxes in pods that kubernetes-sigs/agent-sandbox makes."""

from dataclasses import replace

from kubernetes_asyncio.client import Configuration

from gagar_sandbox.agent_sandbox.claims import Claims
from gagar_sandbox.kubernetes.connect import open_with
from gagar_sandbox.kubernetes.pool import KubernetesPool
from gagar_sandbox.kubernetes.settings import PodSettings, PoolSettings

__all__ = ["Claims", "open_pool"]


async def open_pool(pods: PodSettings, settings: PoolSettings, cluster: Configuration) -> KubernetesPool:
    """As that of `gagar_sandbox.kubernetes`; what `spare` asks for the cluster keeps ready, and not we."""
    return await open_with(lambda api: Claims(api, pods, settings.spare), pods, replace(settings, spare=0), cluster)
