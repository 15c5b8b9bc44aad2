"""The policy's changes as one patch, taken inside the sandbox where they were made."""

from gagar_mcore.tasks.task import Task
from gagar_sandbox.types import Sandbox

BASE = "/base"
MAX_PATCH_BYTES = 1 << 20
NO_PATCH = "no patch: "
GIT_ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}

# Left out: repositories that the policy made, compiled Python, and what is neither file, directory nor link. The trailing
# slashes make git compare what the links a and b point to, under names that are the prefixes of a patch.
_EXTRACT = r"""
set -e
cd "$(mktemp -d)"
ln -s "$1" a
ln -s "$2" b
find b/ \( -name .git -o -name __pycache__ -o ! \( -type f -o -type d -o -type l \) \) -prune -exec rm -rf {} + 1>&2
git diff --no-index --no-prefix --binary --no-renames --no-color --no-ext-diff --no-textconv a/ b/ || [ $? = 1 ]
"""


async def extract_patch(sandbox: Sandbox, task: Task, timeout_s: float = 30.0) -> str:
    """The difference between `BASE`, where the untouched repository must be mounted, and the workdir; "" where there is none.

    Bytes that are not UTF-8 become surrogate escapes. Where no patch can be taken (it exceeds `MAX_PATCH_BYTES`, a file
    cannot be read, time or memory ran out), the answer is one line that begins with `NO_PATCH` and says why; it applies to
    nothing and its verification fails. Raises SandboxLost."""
    command = ["sh", "-c", _EXTRACT, "sh", BASE, task.workdir]
    result = await sandbox.exec(command, timeout_s=timeout_s, env=GIT_ENVIRONMENT, output_limit=MAX_PATCH_BYTES)
    if result.outcome != "exited":
        return f"{NO_PATCH}taking it ended as {result.outcome}\n"
    if result.output_truncated:
        return f"{NO_PATCH}it is larger than {MAX_PATCH_BYTES} bytes\n"
    if result.exit_code != 0:
        reason = " ".join(result.stderr[-300:].decode(errors="replace").split())
        return f"{NO_PATCH}{reason}\n"
    return result.stdout.decode(errors="surrogateescape")
