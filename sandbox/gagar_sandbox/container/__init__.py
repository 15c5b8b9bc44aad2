"""Sandboxes in containers of docker or podman, through their command line."""

from gagar_sandbox.container.command import ContainerSettings
from gagar_sandbox.container.pool import ContainerPool

__all__ = ["ContainerPool", "ContainerSettings"]
