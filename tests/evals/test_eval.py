"""Any model with OpenAI's chat API on a folder of tasks: a real HTTP server says what a script has it say."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.controller.evaluation import evaluate
from gagar_mcore.engine import chat
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.write import write_task

TASK = generate_task(5, 3)
Answer = Callable[[list[dict[str, str]]], tuple[int, Any]]


def said(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def call(function: str, **values: str) -> str:
    parameters = "".join(f"<parameter={name}>{value}</parameter>" for name, value in values.items())
    return f"<think>Let me see.</think>I do so.\n<tool_call><function={function}>{parameters}</function></tool_call>"


def mend(messages: list[dict[str, str]]) -> tuple[int, Any]:
    """Looks, mends, and is done."""
    bug = TASK.bug
    turns = [
        call("bash", command=f"cat {bug.file}"),
        call("str_replace", path=bug.file, old=bug.buggy, new=bug.fixed),
        call("finish"),
    ]
    return said(turns[sum(message["role"] == "assistant" for message in messages)])


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], tuple[str, list[dict[str, Any]]]]]:
    """Starts a server that answers so; its address, and the bodies that it was sent."""
    servers = []

    def start(answer: Answer) -> tuple[str, list[dict[str, Any]]]:
        heard: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                heard.append({**body, "path": self.path, "key": self.headers["authorization"]})
                status, reply = answer(body["messages"])
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1", heard

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(tmp_path: Path, url: str, *overrides: str, samples: int = 1) -> tuple[str, list[dict[str, Any]]]:
    write_task(TASK, tmp_path / "tasks")
    out = tmp_path / "out.jsonl"
    fields = [f"tasks.path={tmp_path / 'tasks'}", *overrides]  # fewer tasks than the recipe holds back: none is trained on
    line = asyncio.run(evaluate("real-packages", fields, url, "any-model", samples, None, 2, out))
    return line, [json.loads(text) for text in out.read_text().splitlines()]


def test_a_model_that_mends_is_paid_and_its_session_is_kept(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    url, heard = serve(mend)
    line, solved = run(tmp_path, url, samples=2)
    assert line == "avg@2 1.000, pass@2 1.000 on 1 tasks; 0 sessions lost to the infrastructure, 0 reports doubted"
    assert [(one["task_id"], one["end"], one["verification"]["reward"]) for one in solved] == [(TASK.id, "finished", 1.0)] * 2
    assert TASK.bug.buggy.strip() in solved[0]["messages"][3]["content"], "what cat printed"
    assert solved[0]["patch"].startswith("diff --git a/") and "secret" not in json.dumps(solved)
    assert {(one["model"], one["path"], one["key"]) for one in heard} == {("any-model", "/v1/chat/completions", "Bearer secret")}


def test_what_is_no_call_is_said_to_the_model_and_turns_end(tmp_path: Path, serve: Any) -> None:
    url, heard = serve(lambda messages: said("I would rather not."))
    line, [solved] = run(tmp_path, url, "rollout.max_turns=2")
    assert line.startswith("avg@1 0.000") and (solved["end"], solved["patch"]) == ("max_turns", "")
    assert "found 0 tool calls" in heard[1]["messages"][-1]["content"]


def test_a_session_ends_before_its_next_answer_would_not_fit(tmp_path: Path, serve: Any) -> None:
    def counted(messages: list[dict[str, str]]) -> tuple[int, Any]:
        status, reply = said(call("bash", command="true"))
        return status, {**reply, "usage": {"prompt_tokens": 1000 * len(messages), "completion_tokens": 10}}

    url, heard = serve(counted)
    line, [solved] = run(tmp_path, url, "rollout.max_context=8000", "rollout.max_new_tokens=2000")
    assert line.startswith("avg@1 0.000") and solved["end"] == "max_context"
    assert len(heard) == 3, "2, 4 and 6 messages; the next would have been 8"


def test_a_server_that_is_out_for_now_is_asked_again(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0.01)
    refusals = iter([429, 503])

    def answer(messages: list[dict[str, str]]) -> tuple[int, Any]:
        status = next(refusals, None)
        return (status, {}) if status else mend(messages)

    url, _ = serve(answer)
    assert run(tmp_path, url)[0].startswith("avg@1 1.000")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {"error": "no such key"}), "status 401: .*no such key"),
        ((200, {"choices": []}), "no answer in the form"),
        ((200, []), "no answer in the form"),
    ],
)
def test_a_server_that_refuses_ends_it_in_one_line(tmp_path: Path, serve: Any, answer: tuple[int, Any], message: str) -> None:
    url, _ = serve(lambda messages: answer)
    with pytest.raises(EngineError, match=message):
        run(tmp_path, url)


def test_a_recipe_without_loaded_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tasks\.path"):
        asyncio.run(evaluate("tiny", [], "http://127.0.0.1:1", "m", 1, None, 1, tmp_path / "out"))


def test_the_recipe_of_real_packages_is_one_of_bash_and_long_tests() -> None:
    recipe = load_recipe("real-packages")
    assert (recipe.tasks.source, recipe.rollout.tools, recipe.verify.timeout_s) == ("harbor", "bash", 300.0)
