"""Where pods come from."""

from dataclasses import dataclass
from typing import Protocol

from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.manifest import pod, selector
from gagar_sandbox.kubernetes.settings import PodSettings
from gagar_sandbox.kubernetes.shape import Shape


class PodSource(Protocol):
    """Each call raises ApiError. A pod is found by its label `name`, whatever it is called on the cluster."""

    async def create(self, shape: Shape, name: str) -> None:
        """Ask for a pod; that it runs is seen by the watch."""

    async def delete(self, name: str) -> None: ...

    async def names(self) -> list[str]:
        """All that was asked for by this run and has not gone."""

    async def clear(self) -> None:
        """Remove what was made beside the pods, in this run's name."""


@dataclass
class Pods:
    """Pods of our own making."""

    api: Api
    settings: PodSettings

    async def create(self, shape: Shape, name: str) -> None:
        await self.api.create(pod(self.settings, shape, name))

    async def delete(self, name: str) -> None:
        await self.api.delete("Pod", "v1", name)

    async def names(self) -> list[str]:
        found, _ = await self.api.find("Pod", "v1", selector(self.settings))
        return [thing["metadata"]["name"] for thing in found]

    async def clear(self) -> None:
        pass
