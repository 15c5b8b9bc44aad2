"""The runner of sessions for the agent of a recipe."""

from pathlib import Path

from gagar_mcore.agent.proxy.limits import ProxyLimits
from gagar_mcore.agent.proxy.outside import SOCKET_FOLDER, OutsideAgent
from gagar_mcore.agent.proxy.rooms import ADAPTERS
from gagar_mcore.agent.proxy.runner import OutsideRunner
from gagar_mcore.agent.session import SessionRunner
from gagar_mcore.config.agent import AgentSection
from gagar_mcore.config.load import RecipeError
from gagar_mcore.verify.patch import BASE
from gagar_sandbox import check_mounts


def runner_of(section: AgentSection, own: SessionRunner, command_timeout_s: float) -> SessionRunner | OutsideRunner:
    """`own` runs sessions of our agent; an outside agent's have the same sandboxes, template and limits."""
    if section.kind == "builtin":
        return own
    agent = outside_agent(section, command_timeout_s)
    return OutsideRunner(own.pool, agent, own.renderer, own.limits, own.sandbox_limits, own.keep_experts, own, own.gate)


def outside_agent(section: AgentSection, command_timeout_s: float) -> OutsideAgent:
    bounds = ProxyLimits(
        request_bytes=section.max_request_bytes,
        session_bytes=section.max_session_bytes,
        session_tokens=section.max_session_tokens,
        calls=section.concurrent_calls,
    )
    mounts, apart = _mounts(section), section.apart
    return OutsideAgent(section.command, mounts, section.environment, bounds, section.grace_s, apart, command_timeout_s)


def check_agent(section: AgentSection) -> None:
    """Raises RecipeError where its mounts are none."""
    mounts = _mounts(section)
    if taken := [place for place in (BASE, SOCKET_FOLDER, ADAPTERS) if place in mounts]:
        raise RecipeError(f"agent.mounts: {taken[0]} is taken in the sandbox of a session; mount it elsewhere")
    try:
        check_mounts(mounts)
    except (ValueError, FileNotFoundError) as error:
        raise RecipeError(f"agent.mounts: {error}") from error


def _mounts(section: AgentSection) -> dict[str, Path]:
    return {inside: Path(outside).absolute() for inside, outside in section.mounts.items()}
