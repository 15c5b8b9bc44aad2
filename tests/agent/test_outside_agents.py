"""mini-swe-agent as it is published, and the APIs' own clients, in a sandbox that reaches the policy through the proxy alone."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from proxied import QWEN3, RENDERERS, Scripted, bash
from test_proxy_runner import fix

from gagar_mcore.agent import grammar
from gagar_mcore.agent.calls import Answer
from gagar_mcore.agent.compact import CompactTools
from gagar_mcore.agent.proxy.outside import OutsideAgent
from gagar_mcore.agent.proxy.runner import OutsideRunner
from gagar_mcore.agent.renderer import Renderer, load_renderer
from gagar_mcore.agent.session import SessionKey, SessionLimits, SessionRunner
from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.config.shipped import shipped_checkpoint
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.protocol import Engine
from gagar_mcore.records.types import Trajectory
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import LocalPool
from gagar_sandbox.types import Limits

AGENTS = Path(__file__).resolve().parents[2] / ".venv-agents"
pytestmark = [
    pytest.mark.agents,
    pytest.mark.skipif(not (AGENTS / ".installed").is_file(), reason="no agents: run `make test-agents`"),
]

ROOM = Limits(memory_mb=2048, processes=128, file_size_mb=64, disk_mb=256)
LIMITS = SessionLimits(max_turns=20, max_new_tokens=500, max_context=30_000, temperature=1.0, deadline_s=150.0)
MINI = (
    *("/agents/bin/python", "-m", "minisweagent", "--task", "{instruction}", "--model", "openai/policy"),
    *("--yolo", "--exit-immediately", "--output", "/tmp/trajectory.json"),
)
QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONPATH": "/adapters",
}
TASK = generate_task(5, 3)
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def run(
    engine: Callable[[], Awaitable[Engine]],
    renderer: Renderer,
    folder: Path,
    command: tuple[str, ...] = MINI,
    limits: SessionLimits = LIMITS,
    apart: bool = False,
) -> tuple[Trajectory, float | None]:
    """The trajectory, and its reward where it finished. `folder` is at /given in the sandbox."""
    task = load_task(write_task(TASK, folder / "tasks"))
    agent = OutsideAgent(command, {"/agents": AGENTS, "/given": folder}, QUIET, apart=apart)

    async def main() -> tuple[Trajectory, float | None]:
        pool, started = LocalPool(2), await engine()
        try:
            runner = OutsideRunner(pool, agent, renderer, limits, ROOM)
            trajectory = await runner.run(SessionKey(1, "train", 1, "g", 0), task, started)
            if trajectory.end_reason != "finished":
                return trajectory, None
            return trajectory, (await Verifier(pool, Limits(), 30.0).verify(task, trajectory.patch)).reward
        finally:
            await started.close()
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 170))


def scripted(engine: Scripted) -> Callable[[], Awaitable[Engine]]:
    async def start() -> Engine:
        return engine

    return start


@pytest.mark.parametrize("renderer", RENDERERS[1:], ids=["qwen3", "mimo"])
def test_mini_swe_agent_solves_a_task_and_trains_on_the_very_tokens(renderer: Renderer, tmp_path: Path) -> None:
    """The engine is scripted and stands in for a model; agent, client, proxy, sandbox and verification are real."""
    engine = Scripted(renderer, [bash("cat *.py", "Let me look.", "hm"), bash(fix(TASK)), bash(DONE)])
    trajectory, reward = run(scripted(engine), renderer, tmp_path)
    assert (trajectory.end_reason, reward) == ("finished", 1.0), trajectory.invalid_detail
    assert list(trajectory.token_ids) == engine.asked[-1].input_ids + engine.said[-1].token_ids
    for earlier, later, said in zip(engine.asked, engine.asked[1:], engine.said, strict=False):
        known = earlier.input_ids + said.token_ids
        assert later.input_ids[: len(known)] == known
    assert trajectory.segment_starts == [0]
    assert [turn.ok for turn in trajectory.turns] == [True] * 3
    assert sum(trajectory.loss_mask) == sum(len(generation.token_ids) for generation in engine.said)
    assert [round(p, 3) for p in trajectory.logprobs if p] == [round(p, 3) for said in engine.said for p in said.logprobs]


def test_mini_swe_agent_in_a_sandbox_of_its_own(tmp_path: Path) -> None:
    """Its commands come to the task's by the environment adapter; its own files and the key are not there."""
    engine = Scripted(QWEN3, [bash("ls -a /agents /proxy; echo $PAGER; exit 7"), bash(fix(TASK)), bash(DONE)])
    command = (*MINI, "--environment-class", "mini_environment.SandboxEnvironment")
    trajectory, reward = run(scripted(engine), QWEN3, tmp_path, command, apart=True)
    assert (trajectory.end_reason, reward) == ("finished", 1.0), trajectory.invalid_detail
    assert list(trajectory.token_ids) == engine.asked[-1].input_ids + engine.said[-1].token_ids
    seen = json.loads(trajectory.turns[0].observation)
    assert seen["returncode"] == 7 and seen["output"].count("No such file") == 2 and seen["output"].endswith("cat\n")


def test_mini_swe_agent_without_tool_calls(tmp_path: Path) -> None:
    """It reads commands out of blocks, shows their output as the user, and leaves out of its history what it cannot read: another
    segment begins."""

    def block(command: str) -> Answer:
        return Answer(f"THOUGHT: so\n\n```mswea_bash_command\n{command}\n```")

    engine = Scripted(QWEN3, [block("cat *.py"), Answer("no block"), block(fix(TASK)), block(DONE)])
    command = (*MINI, "--agent-class", "default", "--model-class", "litellm_textbased", "--config", "default.yaml")
    trajectory, reward = run(scripted(engine), QWEN3, tmp_path, command)
    assert (trajectory.end_reason, reward) == ("finished", 1.0), trajectory.invalid_detail
    first, second = (trajectory.token_ids[start:end].tolist() for start, end in trajectory.segments)
    assert first == engine.asked[1].input_ids + engine.said[1].token_ids
    assert second == engine.asked[-1].input_ids + engine.said[-1].token_ids
    assert QWEN3.decode(engine.said[1].token_ids) == "no block" and "EXACTLY ONE action" in QWEN3.decode(second)


def test_mini_swe_agent_with_the_tiny_policy_comes_to_an_end(tmp_path: Path) -> None:
    """The real engine on the checkpoint that ships, which has never seen this agent: whatever it says, the session ends."""
    checkpoint = shipped_checkpoint("tiny-mimo-v2")
    assert checkpoint is not None
    short = {"system_template": "Use bash.", "instance_template": "{{task}}", "step_limit": 4, "cost_limit": 0.0}
    model = {"format_error_template": "error: {{error}}", "observation_template": "{{output.output}}"}
    (tmp_path / "mini.yaml").write_text(json.dumps({"agent": short, "model": model}))
    limits = SessionLimits(max_turns=8, max_new_tokens=32, max_context=1000, temperature=1.0, deadline_s=150.0)

    async def start() -> Engine:
        return await start_embedded(checkpoint, 4, EngineSection(), tmp_path / "log", max_context=1000)

    trajectory, _ = run(start, load_renderer(checkpoint), tmp_path, (*MINI, "--config", "/given/mini.yaml"), limits)
    assert trajectory.valid and trajectory.end_reason in ("finished", "max_context"), trajectory.invalid_detail
    assert trajectory.turns and {span.version for span in trajectory.weight_spans} == {4}
    own = [(p, m) for p, m in zip(trajectory.logprobs, trajectory.loss_mask, strict=True) if m]
    assert len(own) == sum(turn.generated_tokens for turn in trajectory.turns) and all(p < 0 for p, _ in own)


COMPACT_AGENT = """
import json, os, sys, urllib.request
sys.path.insert(0, "/own")
import grammar

def ask(messages):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "m", "messages": messages}).encode()
    reply = urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers))
    return json.load(reply)["choices"][0]["message"]

def act(action, view, files):
    if (name := grammar.file_needed(action, view)) and os.path.exists(name):
        files.setdefault(name, open(name).read())
    effect = grammar.apply(action, view, files)
    if effect and effect.file:
        files[effect.file] = effect.text
        open(effect.file, "w").write(effect.text)
    return effect

messages, view, files = [{"role": "user", "content": sys.argv[1]}], None, {}
while True:
    messages.append(ask(messages))
    action = grammar.parse(messages[-1]["content"])
    effect = act(action, view, files) if action else None
    if effect and isinstance(action, grammar.Done):
        break
    view = effect.view if effect else view
    messages.append({"role": "tool", "tool_call_id": "", "content": effect.observation if effect else "error"})
"""


def test_an_outside_agent_that_works_like_ours_leaves_the_same_trajectories(tmp_path: Path) -> None:
    """Token for token and log-prob for log-prob, on the real engine: the proxy adds nothing and loses nothing."""
    checkpoint = shipped_checkpoint("tiny-mimo-v2")
    assert checkpoint is not None
    task = load_task(write_task(TASK, tmp_path / "tasks"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "agent.py").write_text(COMPACT_AGENT)
    shutil.copy(grammar.__file__, tmp_path / "own" / "grammar.py")
    agent = OutsideAgent(("python3", "/own/agent.py", "{instruction}"), {"/own": tmp_path / "own"}, grace_s=1.0)
    limits = SessionLimits(max_turns=6, max_new_tokens=32, max_context=500, temperature=1.0, deadline_s=60.0)
    keys = [SessionKey(1, "train", 1, "g", member) for member in range(6)]

    async def main() -> list[tuple[Trajectory, Trajectory]]:
        pool = LocalPool(2)
        engine = await start_embedded(checkpoint, 0, EngineSection(), tmp_path / "log", max_context=500, record_experts=True)
        try:
            own = SessionRunner(pool, CompactTools(), load_renderer(checkpoint), limits, Limits())
            outside = OutsideRunner(pool, agent, own.renderer, limits, Limits())
            return [(await own.run(key, task, engine), await outside.run(key, task, engine)) for key in keys]
        finally:
            await engine.close()
            await pool.close()

    pairs = asyncio.run(asyncio.wait_for(main(), 150))
    for ours, theirs in pairs:
        length = len(theirs.token_ids)  # an observation that nothing follows is not told to the proxy
        assert ours.token_ids[:length] == theirs.token_ids and not any(ours.loss_mask[length:])
        assert ours.logprobs[:length] == theirs.logprobs and ours.loss_mask[:length] == theirs.loss_mask
        assert (ours.weight_spans, ours.patch, theirs.segment_starts) == (theirs.weight_spans, theirs.patch, [0])
        assert [turn.action for turn in ours.turns] == [turn.action for turn in theirs.turns]
    assert any(ours.patch for ours, _ in pairs)


OPENAI_CLIENT = """
import json, openai
client = openai.OpenAI(max_retries=0)
assert [model.id for model in client.models.list()] == ["policy"]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}}]
messages = [{"role": "user", "content": "hello"}]
message = client.chat.completions.create(model="any", messages=messages, tools=tools, temperature=0).choices[0].message
[call] = message.tool_calls
assert json.loads(call.function.arguments) == {"command": "ls"} and message.content == "look"
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "a.py"}]
chunks = list(client.chat.completions.create(model="any", messages=messages, tools=tools, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is a.py."
assert chunks[-1].choices[0].finish_reason == "stop" and chunks[-1].usage.completion_tokens > 0
def refused(kind, **wanted):
    try:
        client.chat.completions.create(**({"model": "any", "messages": messages} | wanted))
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")
assert refused(openai.BadRequestError, n=2).type == "invalid_request_error"
assert refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 40000}]).code == "context_length_exceeded"
try:
    openai.OpenAI(api_key="another", max_retries=0).models.list()
    raise AssertionError("a wrong key opens")
except openai.AuthenticationError:
    pass
try:
    client.embeddings.create(model="any", input="x")
    raise AssertionError("there is a path for embeddings")
except openai.NotFoundError:
    pass
"""

ANTHROPIC_CLIENT = """
import anthropic
client = anthropic.Anthropic(max_retries=0)
tools = [{"name": "bash", "description": "", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
messages = [{"role": "user", "content": "hello"}]
said = client.messages.create(model="any", max_tokens=99, messages=messages, tools=tools)
assert said.stop_reason == "tool_use" and [block.type for block in said.content] == ["thinking", "text", "tool_use"]
assert said.content[2].input == {"command": "ls"}
result = {"type": "tool_result", "tool_use_id": said.content[2].id, "content": "a.py"}
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
with client.messages.stream(model="any", max_tokens=99, messages=messages, tools=tools) as stream:
    assert "".join(stream.text_stream) == "It is a.py."
    assert stream.get_final_message().stop_reason == "end_turn"
try:
    client.messages.create(model="any", max_tokens=99, messages=messages, stop_sequences=["x"])
    raise AssertionError("stop sequences are taken")
except anthropic.BadRequestError as error:
    assert error.body["error"]["type"] == "invalid_request_error"
"""


@pytest.mark.parametrize("script", [OPENAI_CLIENT, ANTHROPIC_CLIENT], ids=["openai", "anthropic"])
def test_the_apis_own_clients_understand_the_proxy(script: str, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(script)
    engine = Scripted(QWEN3, [bash("ls", "look", "hm"), Answer("It is a.py.")])
    trajectory, _ = run(scripted(engine), QWEN3, tmp_path, ("/agents/bin/python", "-u", "/given/client.py"))
    assert trajectory.end_reason in ("finished", "max_context"), trajectory
    assert list(trajectory.token_ids) == engine.asked[-1].input_ids + engine.said[-1].token_ids
