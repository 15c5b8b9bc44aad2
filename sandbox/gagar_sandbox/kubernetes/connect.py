"""Reaching a cluster."""

import os
from collections.abc import Callable

from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.pool import KubernetesPool
from gagar_sandbox.kubernetes.settings import PodSettings, PoolSettings
from gagar_sandbox.kubernetes.source import Pods, PodSource
from gagar_sandbox.types import SandboxUnavailable


async def configuration(kubeconfig: str | None = None, context: str | None = None) -> Configuration:
    """Of the service account of the pod that we run in, where there is one and no `kubeconfig` is named; else of that file, None
    being what `kubectl` would read. Raises SandboxUnavailable."""
    found = Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=found)
        else:
            await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=found)
    except config.ConfigException as error:
        raise SandboxUnavailable(f"no cluster to run sandboxes on: {error}; name a kubeconfig, or run in a pod") from error
    return found


async def open_pool(pods: PodSettings, settings: PoolSettings, cluster: Configuration) -> KubernetesPool:
    """A pool of pods of our own, with nothing left of an earlier process of the same run. Raises SandboxUnavailable."""
    return await open_with(lambda api: Pods(api, pods), pods, settings, cluster)


async def open_with(
    source: Callable[[Api], PodSource], pods: PodSettings, settings: PoolSettings, cluster: Configuration
) -> KubernetesPool:
    """As `open_pool`, with pods from elsewhere."""
    api = Api(cluster, pods.namespace, settings.retry_s)
    pool = KubernetesPool(api, source(api), pods, settings)
    try:
        await pool.start()
    except BaseException:
        await api.close()
        raise
    return pool
