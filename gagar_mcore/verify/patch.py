"""What a session hands in, taken inside the sandbox where it was made: its changes as one patch, or the task's artifact."""

import re

from gagar_mcore.grading.patch import LEFT_OUT
from gagar_mcore.naming import some_of
from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Sandbox

BASE = "/base"
COPY = "/var/tmp/base"  # of an image's own files
MAX_PATCH_BYTES = 1 << 20
NO_PATCH = "no patch: "
MOST_NAMED = 20
GIT_ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}

# Left out: repositories that the policy made, compiled Python, what checkers remember, and what is neither file, directory nor
# link. The trailing slashes make git compare what the links a and b point to, under names that are the prefixes of a patch. The
# task's own history is no change.
_EXTRACT = r"""
set -e
cd "$(mktemp -d)"
ln -s "$1" a
ln -s "$2" b
find b/ \( -name .git -o -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache -o -name .ruff_cache \
    -o ! \( -type f -o -type d -o -type l \) \) -prune -exec rm -rf {} + 1>&2
if [ -e a/.git ]; then cp -r a/.git b/.git; fi
git diff --no-index --no-prefix --binary --no-renames --no-color --no-ext-diff --no-textconv a/ b/ || [ $? = 1 ]
"""
_CHANGE = re.compile(r"^(diff --git |--- .*\n\+\+\+ )", re.MULTILINE)
_UNCOMMITTED = r'git -c safe.directory="*" -c core.fsmonitor= status --porcelain -z --untracked-files=normal'


async def extract_patch(sandbox: Sandbox, task: Task, timeout_s: float = 30.0) -> str:
    """The difference between `BASE`, where the untouched repository must be mounted (`COPY`, where the task has none but its
    image's), and the workdir; "" where there is none.
    Of a task with an artifact: what its `collect` commands leave there, after a line that begins with `LEFT_OUT` where edits
    were not committed.

    Bytes that are not UTF-8 become surrogate escapes. Where no patch can be taken (it exceeds `MAX_PATCH_BYTES`, a file
    cannot be read, time or memory ran out), the answer is one line that begins with `NO_PATCH` and says why; it applies to
    nothing and its verification fails. Raises SandboxLost."""
    if task.artifact is not None:
        return await _collected(sandbox, task, task.artifact)
    return await difference(sandbox, BASE if task.repository.is_dir() else COPY, task.workdir, timeout_s)


async def difference(sandbox: Sandbox, base: str, workdir: str, timeout_s: float) -> str:
    """See extract_patch. Folders that belong to no patch are removed from `workdir`."""
    command = ["sh", "-c", _EXTRACT, "sh", base, workdir]
    result = await sandbox.exec(command, timeout_s=timeout_s, env=GIT_ENVIRONMENT, output_limit=MAX_PATCH_BYTES)
    if result.outcome != "exited":
        return f"{NO_PATCH}taking it ended as {result.outcome}\n"
    if result.output_truncated:
        return f"{NO_PATCH}it is larger than {MAX_PATCH_BYTES} bytes\n"
    if result.exit_code != 0:
        return f"{NO_PATCH}{_one_line(result.stderr)}\n"
    return result.stdout.decode(errors="surrogateescape")


def is_patch(artifact: str, text: str) -> bool:
    """Whether an artifact is one for git, which overlooks what stands before the first change."""
    return artifact.endswith((".patch", ".diff")) or _CHANGE.search(text) is not None


def split_note(patch: str) -> tuple[str, str]:
    """The line on what was left out, "" where there is none, and the patch itself."""
    if not patch.startswith(LEFT_OUT):
        return "", patch
    note, _, rest = patch.partition("\n")
    return note, rest


async def _collected(sandbox: Sandbox, task: Task, artifact: str) -> str:
    for collect in task.collect:
        result = await sandbox.exec(["bash", "-c", collect.command], timeout_s=collect.timeout_s)
        if result.outcome != "exited" or result.exit_code != 0:
            ended = f"exit code {result.exit_code}" if result.outcome == "exited" else result.outcome.replace("_", " ")
            return f"{NO_PATCH}verifier.collect: {ended}: {_one_line(result.stderr)}\n"
    try:
        data = await sandbox.read(artifact, MAX_PATCH_BYTES)
    except OSError as error:
        return f"{NO_PATCH}{artifact}: {error.strerror}\n"
    return await _left_out(sandbox, task) + data.decode(errors="surrogateescape")


async def _left_out(sandbox: Sandbox, task: Task) -> str:
    """One line that names the edits which the policy did not commit: an artifact made of commits is without them."""
    if not task.collect:
        return ""
    result = await sandbox.exec(["sh", "-c", _UNCOMMITTED], timeout_s=60.0)
    names = [entry[3:] for entry in result.stdout.decode(errors="replace").split("\0") if len(entry) > 3]
    if result.exit_code != 0 or not names:
        return ""
    return f"{LEFT_OUT}edits that were not committed, in {' '.join(some_of(names, MOST_NAMED).split())}\n"


def _one_line(stderr: bytes) -> str:
    return " ".join(stderr[-300:].decode(errors="replace").split())
