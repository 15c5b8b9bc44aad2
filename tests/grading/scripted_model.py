"""A real HTTP server in the form of OpenAI's chat API. It stands for a grading model: its answers are a
script's, not a model's.

A script is a function of the messages so far that gives (text, calls), an HTTP status, or one of the faults below."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANG, HANG_UP, GARBAGE, ENDLESS = "hang", "hang up", "garbage", "endless"

_OPENING = re.compile(r"\[data ([0-9a-f]{16}): (.*)\]")
_CANDIDATE = re.compile(r"candidate (c[0-9a-f]{6}): (passing|failing), .* \+(\d+) -(\d+) lines")


def call(name, **arguments):
    return "", [(name, arguments)]


def outside(text):
    """The lines of a tool's result that stand in no fence, read as simply as a model would."""
    lines, mark = [], None
    for line in text.split("\n"):
        opening = _OPENING.fullmatch(line)
        if mark is None and opening:
            mark = opening[1]
        elif mark is not None and line == f"[end {mark}]":
            mark = None
        elif mark is None:
            lines.append(line)
    return "\n".join(lines)


def results(messages):
    return [message["content"] for message in messages if message["role"] == "tool"]


def sizes(messages):
    """Lines added by each passing candidate, as the overview tells."""
    found = _CANDIDATE.findall(outside(results(messages)[0]))
    return {name: int(added) for name, outcome, added, _ in found if outcome == "passing"}


def names(messages):
    """Every candidate that the overview names, with its outcome."""
    return {name: outcome for name, outcome, _, _ in _CANDIDATE.findall(outside(results(messages)[0]))}


def grade(candidate, rank=1, **changes):
    criteria = dict.fromkeys(("approach", "precision", "minimality", "side_effects", "consistency"), 5)
    return {"candidate": candidate, "rank": rank, **criteria, **changes}


def by_size(messages):
    """The grades of a model that likes small patches."""
    found = sizes(messages)
    return [grade(name, 1 + sum(other < size for other in found.values())) for name, size in found.items()]


def diligent(messages):
    """Looks, and hands in."""
    return call("overview") if not results(messages) else call("submit_verdict", grades=by_size(messages))


@contextmanager
def serving(script):
    """The server's address, and the bodies that it was sent."""
    heard, over = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            heard.append({**body, "key": self.headers["authorization"]})
            answer = script(body["messages"])
            if answer == HANG:
                over.wait()
            elif answer == ENDLESS:
                self._endless()
            elif answer == GARBAGE:
                self._send(200, b"\xff\x00<html>{]" * 100)
            elif isinstance(answer, int):
                self._send(answer, b"{}")
            elif answer != HANG_UP:
                self._send(200, json.dumps(_reply(*answer)).encode())

        def _send(self, status, data):
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _endless(self):
            self.send_response(200)
            self.end_headers()
            try:
                while not over.is_set():
                    self.wfile.write(b"x" * 65536)
            except OSError:
                pass

        def log_message(self, *arguments):
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", heard
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def _reply(text, calls):
    said = [
        {"id": f"call{i}", "type": "function", "function": {"name": name, "arguments": _arguments(given)}}
        for i, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": said} if said else {})}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 100, "completion_tokens": 20}}


def _arguments(given):
    return given if isinstance(given, str) else json.dumps(given)
