"""An agent tells its whole conversation at every call; what it has told before is known by its digest and not read again."""

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from gagar_mcore.agent.proxy.api import Reader, Request
from gagar_mcore.agent.proxy.conversation import Message, Refused

CONVERSATIONS = 4  # of one agent that are remembered
_SPACE, _COLON, _BEHIND = re.compile(r"\s*"), re.compile(r"\s*:\s*"), re.compile(r"\s*[,}]")
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Told:
    """`digest`: of the first `end` bytes of a body, up to where the last message ends in the list that opens at `start`."""

    reader: Reader
    start: int
    end: int
    digest: bytes
    messages: tuple[Message, ...]

    def begins(self, body: bytes) -> bool:
        return body[self.end : self.end + 1] == b"," and _digest(body, self.end) == self.digest

    def left_out_of(self, body: bytes) -> bytes:
        """The body as if the messages that are known were not in it."""
        return b"%b[%b" % (body[: self.start], body[self.end + 1 :])


class Heard:
    """What one agent has told, the newest conversations last."""

    def __init__(self) -> None:
        self._told: deque[Told] = deque(maxlen=CONVERSATIONS)

    def read(self, reader: Reader, body: bytes) -> Request:
        """`reader.read(body)`. Raises Refused."""
        known = next((told for told in reversed(self._told) if told.reader is reader and told.begins(body)), None)
        return (known and self._go_on(known, body)) or self._remember(reader, body, body, reader.read(body))

    def _go_on(self, known: Told, body: bytes) -> Request | None:
        """None where what is new is odd, and the body has to be read whole: errors name the place of a message in it, and another
        list of messages may count."""
        new = known.left_out_of(body)
        if _list_of_messages(new) is None:
            return None
        try:
            request = known.reader.read(new, known.messages)
        except Refused:
            return None
        self._told.remove(known)
        return self._remember(known.reader, body, new, request)

    def _remember(self, reader: Reader, body: bytes, new: bytes, request: Request) -> Request:
        """new: the body, or what is left of it."""
        if (ends := _list_of_messages(new)) is not None:
            end = ends[1] + len(body) - len(new)
            self._told.append(Told(reader, ends[0], end, _digest(body, end), request.told))
        return request


def _digest(body: bytes, end: int) -> bytes:
    return sha256(memoryview(body)[:end]).digest()


def _list_of_messages(body: bytes) -> tuple[int, int] | None:
    """The bytes where the list `messages` opens and where the last one in it ends; None where a body has no such list, or two, or
    an empty one."""
    try:
        text = body.decode()
        found = [(start, end) for key, start, end in _members(text) if key == "messages"]
    except (ValueError, RecursionError):
        return None
    if len(found) != 1 or not text.startswith("[", start := found[0][0]):
        return None
    opened, last = text[: start + 1], text[: found[0][1] - 1].rstrip()
    return (len(opened.encode()) - 1, len(last.encode())) if len(last) > len(opened) else None


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Of an object in JSON: each key, and where its value begins and ends. Raises ValueError."""
    at, more = text.index("{") + 1, True
    while more:
        key, at = _JSON.raw_decode(text, _after(_SPACE, text, at))
        start = _after(_COLON, text, at)
        _, end = _JSON.raw_decode(text, start)
        yield key, start, end
        at = _after(_BEHIND, text, end)
        more = text[at - 1] == ","


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    if (found := pattern.match(text, at)) is None:
        raise ValueError(f"no JSON at character {at}")
    return found.end()
