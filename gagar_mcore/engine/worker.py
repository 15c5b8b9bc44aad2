"""The engine's own process: reads framed calls from standard input, answers on standard output, logs on standard error."""

import os
import queue
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gagar_mcore.engine.calls import Calls
from gagar_mcore.engine.decoder import Decoder
from gagar_mcore.engine.framing import encode_frame, pack_array, read_frame
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.records.expert_index import StoredRows
from gagar_mcore.records.experts import compact

INBOX_BOUND = 4096
Message = dict[str, Any]


class Worker:
    """Serves one policy. The first message, `start`, says which; weights are exchanged between calls: those that run are
    finished first, those that come later wait."""

    def __init__(self, inbox: "queue.Queue[Message]", out: BinaryIO) -> None:
        self._inbox = inbox
        self._out = out
        self._tokens = 0
        self._seconds = 0.0

    def serve(self) -> None:
        self._handle(self._inbox.get())
        while True:
            while not (self._calls.busy and self._inbox.empty()):
                self._handle(self._inbox.get())
            self._step()

    def _handle(self, message: Message) -> None:
        call, operation = message.pop("call"), getattr(self, f"_{message.pop('op')}")
        try:
            result = operation(call, **message)
        except EngineError as error:
            self._send({"call": call, "error": str(error)})
            return
        if result is not None:
            self._send({"call": call, "result": result})

    def _start(
        self,
        call: int,
        model: str,
        version: int,
        rows: int,
        threads: int,
        max_context: int | None,
        deterministic: bool,
        device: str,
        record_experts: bool,
    ) -> Message:
        torch.set_num_threads(threads)
        self._policy = Policy(Path(model), version, rows, max_context, device, record_experts)
        self._decoder = Decoder(self._policy)
        self._calls = Calls(self._decoder, isolated=deterministic)
        return {"max_context": self._policy.max_context, "vocab_size": self._policy.architecture.vocab_size}

    def _generate(self, call: int, requests: list[Message]) -> None:
        self._calls.add(call, [GenerateRequest(**{**r, "stop_token_ids": tuple(r["stop_token_ids"])}) for r in requests])

    def _cancel(self, call: int) -> None:
        self._calls.cancel(call)

    def _end_session(self, call: int, session_id: str) -> Message:
        self._decoder.end_session(session_id)
        return {}

    def _load_weights(self, call: int, directory: str, version: int) -> Message:
        self._finish_calls()
        self._policy.load(Path(directory), version)
        self._decoder.clear()
        return {}

    def _release_memory(self, call: int) -> Message:
        self._finish_calls()
        self._policy.release()
        self._decoder.clear()
        return {}

    def _finish_calls(self) -> None:
        while self._calls.busy:
            self._step()

    def _step(self) -> None:
        start = time.perf_counter()
        tokens, over = self._calls.step()
        self._tokens += tokens
        self._seconds += time.perf_counter() - start
        usage = {"tokens": self._tokens, "seconds": self._seconds}
        for call, generations in over.items():
            self._send({"call": call, "result": {"generations": [_plain(g) for g in generations], "usage": usage}})

    def _send(self, message: Message) -> None:
        """An answer that is too long for a frame is an error of its call."""
        try:
            frame = encode_frame(message)
        except EngineError as error:
            frame = encode_frame({"call": message["call"], "error": str(error)})
        self._out.write(frame)
        self._out.flush()


def _plain(generation: Generation) -> Message:
    plain = asdict(replace(generation, routed=None))
    if (routed := generation.routed) is not None:
        assert not isinstance(routed.experts, StoredRows)  # the decoder tells the numbers
        plain["routed"] = {"start": routed.start, "experts": pack_array(compact(routed.experts))}
    return plain


def _read_inbox(stream: BinaryIO, inbox: "queue.Queue[Message]") -> None:
    """Forward messages; the end of the stream is the end of the process."""
    while (message := read_frame(stream)) is not None:
        inbox.put(message)
    os._exit(0)


def main() -> None:
    die_with_parent()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to the log, not between the frames
    inbox: queue.Queue[Message] = queue.Queue(INBOX_BOUND)
    threading.Thread(target=_read_inbox, args=(sys.stdin.buffer, inbox), daemon=True).start()
    Worker(inbox, out).serve()


if __name__ == "__main__":
    main()
