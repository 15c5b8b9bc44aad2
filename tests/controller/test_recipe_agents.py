"""The agent of a recipe: what docs/agents.md shows, and what is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gagar_mcore.agent.proxy.runner import OutsideRunner
from gagar_mcore.agent.session import SessionLimits, SessionRunner
from gagar_mcore.config.agent import AgentSection
from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.controller.agents import check_agent, runner_of
from gagar_sandbox.types import Limits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"


def documented() -> dict[str, Any]:
    text = PAGE.read_text().partition("<!-- run: recipe -->\n```yaml\n")[2].partition("```")[0]
    sections: dict[str, Any] = yaml.safe_load(text)
    return sections


def own_runner() -> SessionRunner:
    limits = SessionLimits(3, 10, 100, 1.0, 5.0)
    return SessionRunner(pool=None, tools=None, renderer=None, limits=limits, sandbox_limits=Limits())  # type: ignore[arg-type]


def test_the_documented_recipe_runs_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "mini", "output": "runs/mini", "model": {"init": "tiny-mimo-v2"}, **documented()}))
    section = load_recipe(str(path), []).agent
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"agent.mounts: .*\.venv-agents does not exist"):
        check_agent(section)
    (tmp_path / ".venv-agents").mkdir()
    check_agent(section)
    runner = runner_of(section, own_runner(), 7.0)
    assert isinstance(runner, OutsideRunner)
    assert runner.agent.command[:3] == ("/agents/bin/python", "-m", "minisweagent")
    assert runner.agent.mounts == {"/agents": tmp_path / ".venv-agents"}
    assert (runner.limits, runner.agent.bounds.calls) == (own_runner().limits, 1)


def test_the_default_is_our_own_agent() -> None:
    assert runner_of(AgentSection(), own := own_runner(), 7.0) is own


@pytest.mark.parametrize("place", ["relative", "/", "/usr/agents", "/a/../b", "/proxy", "/adapters", "/base"])
def test_a_place_that_cannot_have_a_mount_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"agent\.mounts: "):
        check_agent(AgentSection(kind="command", command=("x",), mounts={place: str(tmp_path)}))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["agent.kind=command"], "agent.command: names no program"),
        (["agent.kind=command", "agent.command=[x]", "deterministic=true"], "agent.kind: command does not repeat itself"),
        (["agent.command=[x]"], "have no effect on our own agent"),
        (["agent.kind=command", "agent.command=x"], "agent.command"),
        (["agent.kind=shell"], "agent.kind"),
        (["agent.grace_s=0"], "agent.grace_s"),
    ],
)
def test_a_contradiction_is_named(overrides: list[str], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        load_recipe("tiny", overrides)
