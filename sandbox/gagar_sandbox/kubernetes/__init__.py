"""Sandboxes in pods of a Kubernetes cluster."""

from gagar_sandbox.kubernetes.connect import configuration, open_pool
from gagar_sandbox.kubernetes.pool import KubernetesPool
from gagar_sandbox.kubernetes.settings import PodSettings, PoolSettings

__all__ = ["KubernetesPool", "PodSettings", "PoolSettings", "configuration", "open_pool"]
