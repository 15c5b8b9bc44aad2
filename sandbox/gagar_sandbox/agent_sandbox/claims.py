"""Pods by way of kubernetes-sigs/agent-sandbox: a claim for each, served from a warm pool of the cluster for each shape.

The objects are those of `extensions.agents.x-k8s.io/v1beta1`. A claim's pod is deleted with it, and may reach nothing.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.manifest import labels, pod_labels, pod_spec, selector
from gagar_sandbox.kubernetes.settings import PodSettings
from gagar_sandbox.kubernetes.shape import Shape

VERSION = "extensions.agents.x-k8s.io/v1beta1"
TEMPLATE, WARM_POOL, CLAIM = "SandboxTemplate", "SandboxWarmPool", "SandboxClaim"
Json = dict[str, Any]


@dataclass
class Claims:
    """A PodSource. `warm`: pods that the cluster keeps ready for each shape."""

    api: Api
    settings: PodSettings
    warm: int = 0
    _prepared: dict[Shape, asyncio.Task[None]] = field(default_factory=dict)

    async def create(self, shape: Shape, name: str) -> None:
        known = self._prepared.get(shape)
        if known is None or (known.done() and known.exception() is not None):
            self._prepared[shape] = known = asyncio.create_task(self._prepare(shape))
        await asyncio.shield(known)
        await self.api.create(claim(self.settings, shape, name))

    async def delete(self, name: str) -> None:
        await self.api.delete(CLAIM, VERSION, name)

    async def names(self) -> list[str]:
        return await self._found(CLAIM)

    async def clear(self) -> None:
        for kind in (WARM_POOL, TEMPLATE):
            for name in await self._found(kind):
                await self.api.delete(kind, VERSION, name)

    async def _prepare(self, shape: Shape) -> None:
        await self.api.create(template(self.settings, shape))
        await self.api.create(warm_pool(self.settings, shape, self.warm))

    async def _found(self, kind: str) -> list[str]:
        things, _ = await self.api.find(kind, VERSION, selector(self.settings))
        return [thing["metadata"]["name"] for thing in things]


def claim(settings: PodSettings, shape: Shape, name: str) -> Json:
    return _thing(
        CLAIM,
        settings,
        name,
        {
            "warmPoolRef": {"name": shape_name(settings, shape)},
            "lifecycle": {"shutdownPolicy": "Delete"},
            "additionalPodMetadata": {"labels": pod_labels(settings, shape, name)},
        },
    )


def template(settings: PodSettings, shape: Shape) -> Json:
    return _thing(
        TEMPLATE,
        settings,
        shape_name(settings, shape),
        {
            "podTemplate": {"spec": pod_spec(settings, shape)},
            "networkPolicyManagement": "Managed",
            "networkPolicy": {"ingress": [], "egress": []},
            "envVarsInjectionPolicy": "Disallowed",
        },
    )


def warm_pool(settings: PodSettings, shape: Shape, replicas: int) -> Json:
    name = shape_name(settings, shape)
    return _thing(WARM_POOL, settings, name, {"replicas": replicas, "sandboxTemplateRef": {"name": name}})


def shape_name(settings: PodSettings, shape: Shape) -> str:
    """Runs do not share templates: they remove theirs when they end."""
    return f"{settings.run}-{shape.id}"


def _thing(kind: str, settings: PodSettings, name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": settings.namespace, "labels": labels(settings)}
    return {"apiVersion": VERSION, "kind": kind, "metadata": metadata, "spec": spec}
