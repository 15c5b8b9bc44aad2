"""Whether a passing patch is as clean as the minimal repair that its task holds back. No grader sees this."""

from gagar_mcore.grading.patch import FilePatch, PatchError, parse_patch
from gagar_mcore.tasks.load import solution_files
from gagar_mcore.tasks.task import Task


def is_clean(task: Task, patch: str) -> bool:
    """True where the patch changes the files of the task's own solution and no others, in the same places, and no more lines;
    False where that solution is no patch. Raises OSError or PatchError where it cannot be read."""
    solution = solution_files(task)[0]
    if solution.suffix != ".patch":
        return False
    reference = parse_patch(solution.read_text(errors="surrogateescape"))
    try:
        changes = parse_patch(patch)
    except PatchError:
        return False
    return len(changes) == len(reference) and all(
        _within(change, minimal) for change, minimal in zip(_by_path(changes), _by_path(reference), strict=True)
    )


def _by_path(files: list[FilePatch]) -> list[FilePatch]:
    return sorted(files, key=lambda file: file.path)


def _within(change: FilePatch, minimal: FilePatch) -> bool:
    """One file's change against the minimal one: same kind, same blocks, none of them longer."""
    if (change.path, change.status, change.binary, change.link) != (minimal.path, minimal.status, minimal.binary, minimal.link):
        return False
    return len(change.blocks) == len(minimal.blocks) and all(
        mine.old == theirs.old and len(mine.removed) <= len(theirs.removed) and len(mine.added) <= len(theirs.added)
        for mine, theirs in zip(change.blocks, minimal.blocks, strict=True)
    )
