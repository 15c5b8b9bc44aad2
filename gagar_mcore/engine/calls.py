"""Calls of `generate` on their way through a decoder."""

from collections import deque
from collections.abc import Sequence

from gagar_mcore.engine.decoder import Decoder, Stream
from gagar_mcore.engine.protocol import GenerateRequest, Generation


class Calls:
    """Continuous: a call joins whatever runs, and sessions keep their cache between calls. Isolated: one call at a time,
    each from an empty cache, so that its answer is a function of the call and the weights alone."""

    def __init__(self, decoder: Decoder, isolated: bool) -> None:
        self._decoder = decoder
        self._isolated = isolated
        self._queued: deque[tuple[int, list[Stream]]] = deque()
        self._open: dict[int, list[Stream]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._queued or self._open)

    def add(self, call: int, requests: Sequence[GenerateRequest]) -> None:
        """Raises EngineError where a session already has a request at work."""
        streams = [Stream.of(request) for request in requests]
        if self._isolated:
            self._queued.append((call, streams))
        else:
            self._decoder.submit(streams)
            self._open[call] = streams

    def cancel(self, call: int) -> None:
        """Drop a call without an answer; one that is over is ignored."""
        self._queued = deque(queued for queued in self._queued if queued[0] != call)
        self._decoder.abort(self._open.pop(call, []))

    def step(self) -> tuple[int, dict[int, list[Generation]]]:
        """One token for every stream; returns the number of new tokens and the calls that are over."""
        if self._queued and not self._open:
            call, streams = self._queued.popleft()
            self._decoder.clear()
            self._decoder.submit(streams)
            self._open[call] = streams
        tokens = self._decoder.step()
        over = [call for call, streams in self._open.items() if all(stream.finish_reason for stream in streams)]
        return tokens, {call: [stream.generation(self._decoder.version) for stream in self._open.pop(call)] for call in over}
