"""The files that a patch leaves behind, read off its text and the base: nothing of it is run, and git is not asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gagar_mcore.grading.patch import FilePatch, PatchError, parse_patch, patched

NAME_BYTES = 200
DEPTH = 24


@dataclass(frozen=True, slots=True)
class Applied:
    """`files`: the text of each changed file after the patch, None for one that is deleted. `unknown`: changed files whose text
    cannot be told: binaries, links, and those whose base is not at hand or differs."""

    files: dict[str, str | None] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def applied(patch: str, base_text: Callable[[str], str | None]) -> Applied:
    """`base_text`: a file of the repository, None where there is none. A text that is no patch changes nothing."""
    try:
        files = parse_patch(patch)
    except PatchError:
        return Applied()
    known: dict[str, str | None] = {}
    unknown: list[str] = []
    for file in files:
        text = None if file.status == "deleted" else _after(file, base_text)
        if text is None and file.status != "deleted":
            unknown.append(file.path)
        else:
            known[file.path] = text
    return Applied(known, tuple(unknown))


def fit_for_disk(path: str) -> bool:
    """Whether a path of the policy's names a plain file below the folder that it is joined to."""
    pure = PurePosixPath(path)
    plain = bool(pure.parts) and not pure.is_absolute() and len(pure.parts) <= DEPTH and "\0" not in path
    return plain and all(name not in ("..", ".git") and 0 < _size(name) <= NAME_BYTES for name in pure.parts)


def _size(name: str) -> int:
    """In bytes; 0 where no file system could hold it."""
    try:
        return len(name.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        return 0


def _after(file: FilePatch, base_text: Callable[[str], str | None]) -> str | None:
    if file.binary or file.link:
        return None
    base = "" if file.status == "added" else base_text(file.path)
    return None if base is None else patched(base, file)
