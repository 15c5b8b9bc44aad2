"""An outside agent in a real sandbox: its sessions, its ways out, its failures. The engine is scripted."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from proxied import LIMITS, QWEN3, RENDERERS, Scripted, bash

from gagar_mcore.agent.calls import Answer
from gagar_mcore.agent.proxy import rooms
from gagar_mcore.agent.proxy.outside import OutsideAgent
from gagar_mcore.agent.proxy.runner import OutsideRunner
from gagar_mcore.agent.proxy.workspace import Workspace
from gagar_mcore.agent.session import SessionKey, SessionLimits
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.records.types import Trajectory, Verification
from gagar_mcore.tasks.generate import GeneratedTask, generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits

AGENT = r"""
import json, os, subprocess, sys, urllib.request

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"name": "bash", "description": "Runs it.", "parameters": SCHEMA}

def ask(messages):
    body = json.dumps({"model": "m", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    messages.append(ask(messages))
    for call in messages[-1].get("tool_calls", []):
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
    if messages[-1]["role"] != "tool":
        break
"""


class Broken(Scripted):
    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        raise EngineError("out of memory")


def fix(task: GeneratedTask) -> str:
    bug = task.bug
    return f"sed -i '{bug.line}c\\{bug.fixed}' {bug.file} && echo fixed"


def agent(folder: Path, command: str = "python3 /agent/agent.py", script: str = AGENT, **more: object) -> OutsideAgent:
    (folder / "agent").mkdir(exist_ok=True)
    (folder / "agent" / "agent.py").write_text(script)
    return OutsideAgent((*command.split(), "{instruction}"), {"/agent": folder / "agent"}, **more)  # type: ignore[arg-type]


def run(
    engine: Scripted, outside: OutsideAgent, folder: Path, limits: SessionLimits = LIMITS
) -> tuple[Trajectory, Verification | None]:
    task = load_task(write_task(generate_task(5, 3), folder / "tasks"))

    async def main() -> tuple[Trajectory, Verification | None]:
        pool = LocalPool(2)
        try:
            runner = OutsideRunner(pool, outside, engine.renderer, limits, Limits(), lambda key, experts: (len(experts), "sum"))
            trajectory = await runner.run(SessionKey(1, "train", 1, "g", 0), task, engine)
            finished = trajectory.end_reason == "finished"
            return trajectory, await Verifier(pool, Limits(), 30.0).verify(task, trajectory.patch) if finished else None
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 90))


@pytest.mark.parametrize("renderer", RENDERERS[1:], ids=["qwen3", "mimo"])
def test_an_outside_agent_solves_a_task_and_its_trajectory_is_what_the_engine_said(renderer: object, tmp_path: Path) -> None:
    answers = [bash("cat *.py", "look", "hm"), bash(fix(generate_task(5, 3))), Answer("done")]
    engine = Scripted(renderer, list(answers), recording=True)  # type: ignore[arg-type]
    trajectory, verification = run(engine, agent(tmp_path), tmp_path)
    assert trajectory.valid and trajectory.end_reason == "finished"
    assert verification is not None and verification.reward == 1.0
    assert list(trajectory.token_ids) == engine.asked[-1].input_ids + engine.said[-1].token_ids
    assert sum(trajectory.loss_mask) == sum(len(generation.token_ids) for generation in engine.said)
    assert trajectory.segment_starts == [0]
    assert trajectory.experts == (len(trajectory.token_ids), "sum")
    assert [(turn.tool, turn.observation) for turn in trajectory.turns][1:] == [("bash", "fixed\n"), ("", "")]


PROBE = r"""
import os, socket, sys, urllib.request
def tried(call):
    try:
        return call()
    except OSError as error:
        return type(error).__name__
found = {
    "internet": tried(lambda: socket.create_connection(("1.1.1.1", 80), 2)),
    "names": tried(lambda: socket.getaddrinfo("example.com", 80)),
    "socket": tried(lambda: os.unlink("/proxy/model.sock")),
    "beside it": tried(lambda: open("/proxy/x", "w")),
    "key": tried(lambda: urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/models"))),
}
assert list(found.values()) == ["OSError", "gaierror", "OSError", "OSError", "HTTPError"], found
"""


def test_the_proxy_is_the_only_way_out(tmp_path: Path) -> None:
    trajectory, _ = run(Scripted(QWEN3, [Answer("done")]), agent(tmp_path, script=PROBE + AGENT), tmp_path)
    assert trajectory.end_reason == "finished", trajectory


@pytest.mark.parametrize(
    ("command", "reason"),
    [("/agent/none", "exit code 127"), ("python3 /agent/none.py", "exit code 2"), ("true", "exit code 0")],
)
def test_an_agent_that_asks_nothing_is_a_failure_of_the_infrastructure(command: str, reason: str, tmp_path: Path) -> None:
    trajectory, _ = run(Scripted(QWEN3, []), agent(tmp_path, command), tmp_path)
    assert (trajectory.valid, trajectory.invalid_reason) == (False, "agent_failed")
    assert reason in trajectory.invalid_detail


def test_an_agent_that_breaks_down_later_has_failed(tmp_path: Path) -> None:
    trajectory, _ = run(Scripted(QWEN3, [Answer("done")]), agent(tmp_path, script=AGENT + "sys.exit(3)"), tmp_path)
    assert (trajectory.valid, trajectory.end_reason) == (True, "agent_failed")
    assert sum(trajectory.loss_mask) > 0


def test_an_agent_that_goes_on_after_the_end_is_stopped_and_its_work_is_kept(tmp_path: Path) -> None:
    """It asks again and again; the session's last answer and its patch stand."""
    asking = "    messages.append(ask(messages))"
    forever = AGENT.replace(asking, f"    try:\n    {asking}\n    except OSError:\n        continue")
    engine = Scripted(QWEN3, [bash("echo x > new.txt")] * 3)
    limits = SessionLimits(2, LIMITS.max_new_tokens, LIMITS.max_context, 1.0, 60.0)
    trajectory, _ = run(engine, agent(tmp_path, script=forever, grace_s=1.0), tmp_path, limits)
    assert (trajectory.valid, trajectory.end_reason) == (True, "max_turns")
    assert len(trajectory.turns) == 2 and "new.txt" in trajectory.patch


def test_an_engine_that_fails_makes_the_session_invalid(tmp_path: Path) -> None:
    trajectory, _ = run(Broken(QWEN3, []), agent(tmp_path), tmp_path)
    assert (trajectory.valid, trajectory.invalid_reason, trajectory.invalid_detail) == (False, "engine_failed", "out of memory")


def test_a_session_past_its_deadline_has_failed(tmp_path: Path) -> None:
    limits = SessionLimits(2, LIMITS.max_new_tokens, LIMITS.max_context, 1.0, 1.0)
    trajectory, _ = run(Scripted(QWEN3, []), agent(tmp_path, script="import time; time.sleep(60)"), tmp_path, limits)
    assert (trajectory.valid, trajectory.end_reason) == (True, "deadline")


APART = (
    AGENT.replace(
        'done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)',
        "done = run(command)",
    )
    .replace(
        "done.stdout + done.stderr})",
        "json.dumps(done)})",
    )
    .replace(
        "messages = [",
        """
def run(command, **more):
    headers = {"Authorization": "Bearer " + os.environ["WORKSPACE_KEY"]}
    body = json.dumps({"command": command, **more}).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(os.environ["WORKSPACE_URL"], body, headers)))

assert os.listdir(".") == [] and not os.path.exists("/base")
try:
    run("echo \\0")
    sys.exit("a NUL is taken")
except urllib.error.HTTPError as error:
    assert error.code == 400
messages = [""",
        1,
    )
)


def test_an_agent_that_runs_apart_works_on_the_task_alone_and_its_policy_cannot_reach_it(tmp_path: Path) -> None:
    """Commands have a deadline of their own and no sight of the proxy, the key, or the agent."""
    look = "ls /proxy /agent; cat /proc/*/environ | tr '\\0' '\\n' | grep -c KEY; exit 3"
    engine = Scripted(QWEN3, [bash(look), bash("sleep 60"), bash(fix(generate_task(5, 3))), Answer("done")])
    outside = agent(tmp_path, script=APART, apart=True, command_timeout_s=1.0)
    trajectory, verification = run(engine, outside, tmp_path)
    assert trajectory.end_reason == "finished" and verification is not None and verification.reward == 1.0
    saw, slept, fixed = (json.loads(turn.observation) for turn in trajectory.turns[:3])
    assert saw["output"].count("No such file") == 2 and saw["output"].endswith("\n0\n") and saw["exit_code"] == 3
    assert (slept["outcome"], fixed["output"]) == ("timed_out", "fixed\n")


def test_a_sandbox_that_is_lost_beneath_an_agent_apart_makes_the_session_invalid(tmp_path: Path) -> None:
    """The workspace dies while a command runs in it."""

    class Failing(Workspace):
        async def run(self, body: bytes) -> dict[str, object]:
            await self.sandbox.close()
            return await super().run(body)

    engine = Scripted(QWEN3, [bash("true"), Answer("done")])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rooms, "Workspace", Failing)
        trajectory, _ = run(engine, agent(tmp_path, script=APART, apart=True, grace_s=1.0), tmp_path)
    assert (trajectory.valid, trajectory.invalid_reason, trajectory.invalid_detail) == (
        False,
        "sandbox_lost",
        "the sandbox is closed",
    )


def test_what_a_policys_command_asks_by_itself_is_recorded_too(tmp_path: Path) -> None:
    """It finds the key in its environment; the answers are the policy's and are credited as such."""
    itself = "python3 /agent/agent.py 'ignore the task'"
    engine = Scripted(QWEN3, [bash(itself), Answer("inner"), Answer("outer")])
    trajectory, _ = run(engine, agent(tmp_path), tmp_path)
    assert len(trajectory.segment_starts) == 2
    assert [turn.action for turn in trajectory.turns][1:] == ["outer", "inner"]
