"""What tests of pools of pods have in common."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fake_api import FakeCluster

from gagar_sandbox.kubernetes import KubernetesPool, PodSettings, PoolSettings

SOURCES = Path(__file__).resolve().parents[2] / "sandbox" / "image"
PODS = PodSettings("sandboxes", "registry.test/gagar-sandbox:1", "registry.test/task:1", "tests", "run-1")
PATIENT = PoolSettings(concurrency=16, retry_s=60.0, acquire_s=90.0, start_s=60.0)

Body = Callable[[KubernetesPool, FakeCluster], Awaitable[None]]
