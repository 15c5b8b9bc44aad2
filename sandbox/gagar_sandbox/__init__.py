"""Sandboxes in which code that a policy wrote may run."""

from gagar_sandbox.bwrap import check_mounts
from gagar_sandbox.doctor import Check, diagnose
from gagar_sandbox.forwarding import forwarding
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
    "diagnose",
    "forwarding",
]
