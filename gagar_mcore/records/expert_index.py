"""Where the experts of a sequence's tokens are stored, for whoever needs them: rows in files that a sidecar writes beside the
engine's server, read no sooner than they are asked for."""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gagar_mcore.records.store import RecordError

UNKNOWN = -1
PART = np.dtype([(name, "<i8") for name in ("token", "rows", "file", "offset", "itemsize", "crc")])


@dataclass(frozen=True, slots=True)
class StoredRows:
    """`rows` times `width` = `[layers with experts, top_k]` numbers of `itemsize` 1 (unsigned) or 2 bytes, from byte `offset` of
    `file` on, with their CRC-32."""

    file: str
    offset: int
    rows: int
    width: tuple[int, int]
    itemsize: int
    crc: int

    def __len__(self) -> int:
        return self.rows

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "StoredRows":
        """From what JSON makes of it. Raises ValueError."""
        try:
            width, numbers = tuple(map(int, plain["width"])), [int(plain[name]) for name in ("offset", "rows", "itemsize", "crc")]
            if len(width) != 2 or min(*width, *numbers) < 0 or numbers[2] not in (1, 2):
                raise ValueError(plain)
            return cls(str(plain["file"]), numbers[0], numbers[1], width, numbers[2], numbers[3])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no reference to stored experts: {plain!r:.200}") from error


@dataclass(frozen=True)
class ExpertIndex:
    """Stands for `[num_tokens, *width]` int16 numbers, `UNKNOWN` where no part has them; of parts that overlap the later counts.

    parts: `PART` records in the order of their first token; `file` is a place in `files`."""

    num_tokens: int
    width: tuple[int, int]
    files: list[str]
    parts: npt.NDArray[Any]

    @classmethod
    def build(cls, num_tokens: int, stored: Iterable[tuple[int, StoredRows]]) -> "ExpertIndex":
        """stored: first token and rows of each part, at least one, in the order in which they count."""
        stored = list(stored)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(rows.file for _, rows in stored))}
        parts = [(token, r.rows, numbers[r.file], r.offset, r.itemsize, r.crc) for token, r in stored]
        return cls(num_tokens, stored[0][1].width, list(numbers), np.array(parts, PART))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_tokens, *self.width

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, tokens: slice) -> npt.NDArray[np.int16]:
        """The rows of consecutive tokens. Raises RecordError where a file is missing or damaged."""
        start, stop, _ = tokens.indices(self.num_tokens)
        found = np.full((max(0, stop - start), *self.width), UNKNOWN, np.int16)
        for part in self._overlapping(start, stop):
            first, last = max(start, int(part["token"])), min(stop, int(part["token"] + part["rows"]))
            found[first - start : last - start] = self._read(part)[first - int(part["token"]) : last - int(part["token"])]
        return found

    def cut(self, start: int, stop: int) -> "ExpertIndex":
        """Of tokens `[start, stop)`, counted from `start`; no part may reach over their ends."""
        parts = self._overlapping(start, stop).copy()
        parts["token"] -= start
        if len(parts) and (parts["token"].min() < 0 or (parts["token"] + parts["rows"]).max() > stop - start):
            raise RecordError(f"stored experts reach over the ends of tokens [{start}, {stop})")
        return ExpertIndex(stop - start, self.width, self.files, parts)

    def to_bytes(self) -> bytes:
        head = {"num_tokens": self.num_tokens, "width": self.width, "files": self.files}
        return json.dumps(head).encode() + b"\n" + self.parts.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "ExpertIndex":
        head, _, parts = data.partition(b"\n")
        plain = json.loads(head)
        first, second = plain["width"]
        return cls(plain["num_tokens"], (first, second), plain["files"], np.frombuffer(parts, PART))

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.maximum.accumulate(self.parts["token"] + self.parts["rows"])

    def _overlapping(self, start: int, stop: int) -> npt.NDArray[Any]:
        parts = self.parts[np.searchsorted(self._ends, start, "right") : np.searchsorted(self.parts["token"], stop)]
        return parts[parts["token"] + parts["rows"] > start]

    def _read(self, part: Any) -> npt.NDArray[Any]:
        path, size = Path(self.files[part["file"]]), int(part["rows"] * part["itemsize"]) * self.width[0] * self.width[1]
        try:
            with open(path, "rb") as file:
                file.seek(int(part["offset"]))
                data = file.read(size)
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}; it holds the experts of tokens that are to be trained on") from error
        if len(data) != size or zlib.crc32(data) != part["crc"]:
            raise RecordError(f"{path}: damaged at byte {part['offset']}, the experts there do not match their checksum")
        return np.frombuffer(data, np.uint8 if part["itemsize"] == 1 else np.int16).reshape(-1, *self.width)


def stored_files(index: Path) -> list[Path]:
    """Those that the index in a file refers to; none where there is no such file."""
    if not index.is_file():
        return []
    with open(index, "rb") as file:
        return [Path(name) for name in json.loads(file.readline())["files"]]


class ExpertIndexBuilder:
    """One index out of many, end to end; a few numbers a part are kept."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._parts: list[npt.NDArray[Any]] = []
        self._width: tuple[int, int] | None = None

    def append(self, token: int, index: ExpertIndex) -> None:
        """index: of the tokens from `token` on. Raises ValueError for another width."""
        if self._width not in (None, index.width):
            raise ValueError(f"experts: rows are {list(index.width)}, those before are {list(self._width or ())}")
        self._width = index.width
        numbers = np.array([self._files.setdefault(name, len(self._files)) for name in index.files], np.int64)
        parts = index.parts.copy()
        parts["token"] += token
        parts["file"] = numbers[parts["file"]]
        self._parts.append(parts)

    def finish(self, num_tokens: int) -> ExpertIndex | None:
        """None where nothing was appended."""
        if self._width is None:
            return None
        return ExpertIndex(num_tokens, self._width, list(self._files), np.concatenate(self._parts))
