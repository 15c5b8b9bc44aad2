"""Sandboxes in which code that a policy wrote may run."""

from gagar_sandbox.bwrap import check_mounts
from gagar_sandbox.doctor import Check, diagnose
from gagar_sandbox.forwarding import forwarding
from gagar_sandbox.images import Image, ImageRefused, ImageStore, default_store
from gagar_sandbox.pool import LocalPool
from gagar_sandbox.types import (
    ExecResult,
    Limits,
    OnOutput,
    Outcome,
    Sandbox,
    SandboxLost,
    SandboxPool,
    SandboxSpec,
    SandboxUnavailable,
)

__all__ = [
    "Check",
    "ExecResult",
    "Image",
    "ImageRefused",
    "ImageStore",
    "Limits",
    "LocalPool",
    "OnOutput",
    "Outcome",
    "Sandbox",
    "SandboxLost",
    "SandboxPool",
    "SandboxSpec",
    "SandboxUnavailable",
    "check_mounts",
    "default_store",
    "diagnose",
    "forwarding",
]
