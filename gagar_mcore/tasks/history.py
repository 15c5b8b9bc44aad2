"""The history that a policy may see: what came before the task's own commit, and nothing else. All git runs in sandboxes."""

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gagar_mcore.naming import some_of
from gagar_mcore.tasks.load import HISTORY
from gagar_mcore.tasks.task import Task, TaskError
from gagar_sandbox.types import Limits, Sandbox, SandboxPool, SandboxSpec

SCRIPTS = Path(__file__).parent / "git"
LIMITS = Limits(memory_mb=2048, processes=128, file_size_mb=2048, disk_mb=2048)
CLEAN_S = 1800.0
PART_BYTES = 8 << 20
MOST_NAMED = 5
_CLEAN = 'test ! -e .git || { cat > /tmp/clean.sh && sh /tmp/clean.sh "$1" && rm -f /tmp/clean.sh /tmp/git.*; }'


@dataclass(frozen=True, slots=True)
class History:
    """What a repository holds: `reachable` counts the objects of `base` and of the tags before it, `objects` all there are.
    `leaks`: references, remotes, settings and files that are no part of that."""

    base: str
    head: str
    reachable: int
    objects: int
    leaks: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """Why a policy must not see it; None where it may."""
        if self.head != self.base:
            return f"HEAD is {self.head}, not the base commit {self.base}"
        if self.leaks:
            return f"holds what the base commit does not know: {some_of(self.leaks, MOST_NAMED)}"
        if self.objects != self.reachable:
            return f"holds {self.objects} objects, of which the base commit reaches {self.reachable}"
        return None


async def count_history(task: Task, pool: SandboxPool) -> History:
    """Of the task's repository as it is. Raises TaskError where git cannot read it, SandboxLost, SandboxUnavailable."""
    sandbox = await pool.acquire(_spec(task))
    try:
        return await _count(sandbox, task)
    finally:
        await sandbox.close()


async def clean_history(task: Task, pool: SandboxPool) -> History:
    """Replace the repository's .git by one that knows the base commit (HEAD where the task names none) and what came before, and
    record what is left in `HISTORY`. Raises TaskError where that fails or leaves anything else, SandboxLost,
    SandboxUnavailable."""
    sandbox = await pool.acquire(_spec(task))
    try:
        await _script(sandbox, task, "clean.sh")
        history = await _count(sandbox, task)
        if problem := history.problem():
            raise TaskError(f"{task.repository}: cleaned, and still {problem}")
        await _bring_out(sandbox, task.repository)
    finally:
        await sandbox.close()
    record = {name: value for name, value in asdict(history).items() if name != "leaks"}
    (task.directory / HISTORY).write_text(json.dumps(record) + "\n")
    return history


async def clean_inside(sandbox: Sandbox, task: Task, timeout_s: float) -> None:
    """What `clean_history` does, of a repository that is in an image alone: in a sandbox, before anything of a policy is there.
    Raises TaskError where that fails, SandboxLost."""
    script = (SCRIPTS / "clean.sh").read_bytes()
    command = ["sh", "-c", _CLEAN, "sh", task.base_commit or "HEAD"]
    result = await sandbox.exec(command, timeout_s=timeout_s, stdin=script)
    if result.outcome != "exited" or result.exit_code != 0:
        said = " ".join(result.stderr[-300:].decode(errors="replace").split())
        raise TaskError(f"{task.image}: the history in {task.workdir} cannot be cleaned ({result.outcome}): {said}")


def _spec(task: Task) -> SandboxSpec:
    return SandboxSpec(task.repository, "/app", {"/git": SCRIPTS}, LIMITS)


async def _count(sandbox: Sandbox, task: Task) -> History:
    said = [line.split(" ", 1) for line in (await _script(sandbox, task, "count.sh")).splitlines() if " " in line]
    facts = {kind: value for kind, value in said if kind in ("base", "head", "reachable", "objects")}
    leaks = tuple(f"{kind} {value}" for kind, value in said if kind not in facts)
    try:
        return History(facts["base"], facts["head"], int(facts["reachable"]), int(facts["objects"]), leaks)
    except (KeyError, ValueError) as error:
        raise TaskError(f"{task.repository}: git does not tell what is in it: {facts}") from error


async def _script(sandbox: Sandbox, task: Task, name: str) -> str:
    command: Sequence[str] = ["sh", f"/git/{name}", task.base_commit or "HEAD"]
    result = await sandbox.exec(command, timeout_s=CLEAN_S, output_limit=1 << 20)
    if result.outcome != "exited" or result.exit_code != 0:
        said = " ".join(result.stderr[-300:].decode(errors="replace").split())
        raise TaskError(f"{task.repository}: git cannot read it ({result.outcome}, exit code {result.exit_code}): {said}")
    return result.stdout.decode(errors="replace")


async def _bring_out(sandbox: Sandbox, repository: Path) -> None:
    """The new .git in place of the old one, which goes only when the new one is whole."""
    with tempfile.TemporaryDirectory(dir=repository.parent, prefix=".history-") as folder:
        with tempfile.TemporaryFile(dir=folder) as packed:
            number = 0
            while (part := await _part(sandbox, number)) is not None:
                packed.write(part)
                number += 1
            packed.seek(0, io.SEEK_SET)
            with tarfile.open(fileobj=packed) as archive:
                archive.extractall(folder, filter="data")
        old = Path(folder) / "old"
        (repository / ".git").rename(old)
        (Path(folder) / ".git").rename(repository / ".git")
        shutil.rmtree(old)


async def _part(sandbox: Sandbox, number: int) -> bytes | None:
    try:
        return await sandbox.read(f"/tmp/git.{number:04d}", PART_BYTES)
    except FileNotFoundError:
        return None
