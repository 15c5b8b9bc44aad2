"""The files of a pod, as its keeper has them: put there, gone back to, and every time compared by their digest."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gagar_sandbox.inside.frames import pack
from gagar_sandbox.kubernetes.call import Call
from gagar_sandbox.kubernetes.live import LivePod
from gagar_sandbox.kubernetes.manifest import BASE, INPUTS, KEEPER, KEPT, SCRATCH, WORK, WRITABLE
from gagar_sandbox.kubernetes.tree import EMPTY, Tree
from gagar_sandbox.types import SandboxLost, SandboxSpec

FILES_S = 300.0
SNAPSHOT = "snapshot"


class Mismatch(SandboxLost):
    """Files are not what they must be: the pod is not to be used again."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the keeper: its words, what follows them, and the digest that the tree must have then (None: any)."""

    words: tuple[str, ...]
    expected: str | None
    then: bytes = b""


async def prepare(pod: LivePod, spec: SandboxSpec) -> str:
    """Bring in the base and the read-only folders. Returns the digest of the base. Raises Mismatch, SandboxLost, OSError."""
    base = f"{KEPT}/{BASE}"
    if spec.base is None:
        steps = [Step(("sum", base), pod.digest)]
    else:
        tree = await asyncio.to_thread(Tree.read, spec.base)
        steps = [Step(("put", base), tree.digest, tree.data)]
    for index, place in enumerate(pod.shape.mounts):
        inputs = f"{INPUTS}/{index}"
        if spec.read_only[place] == spec.base:
            steps.append(Step(("copy", base, inputs), steps[0].expected))
        else:
            tree = await asyncio.to_thread(Tree.read, spec.read_only[place])
            steps.append(Step(("put", inputs), tree.digest, tree.data))
    steps += [Step(("sum", f"{SCRATCH}/{name}"), EMPTY) for name in WRITABLE]
    steps.append(Step(("copy", base, f"{SCRATCH}/{WORK}"), None))
    digests = await _all(pod, steps)
    if digests[0] != digests[-1]:
        raise Mismatch(f"pod {pod.pod}: the workdir is not the base that was copied there")
    return digests[0]


async def snapshot(pod: LivePod) -> dict[str, str]:
    """Keep what is written so far. Returns the digests by name of the tree."""
    names = [WORK, *WRITABLE]
    steps = [Step(("copy", f"{SCRATCH}/{name}", f"{KEPT}/{SNAPSHOT}-{name}"), None) for name in names]
    return dict(zip(names, await _all(pod, steps), strict=True))


async def go_back(pod: LivePod, base: str, kept: dict[str, str] | None) -> None:
    """To what was kept, or to the base, of which `base` is the digest. Raises Mismatch, SandboxLost."""
    await pod.kill_all(FILES_S)
    if kept is not None:
        await _all(pod, [Step(("copy", f"{KEPT}/{SNAPSHOT}-{n}", f"{SCRATCH}/{n}"), digest) for n, digest in kept.items()])
    else:
        await _all(pod, [Step(("copy", f"{KEPT}/{BASE}", f"{SCRATCH}/{WORK}"), base), *_wipes(SCRATCH, list(WRITABLE))])


async def clean(pod: LivePod, base: str) -> None:
    """Back to a pod that nobody has used: no process, no file but the base of its image. Raises Mismatch, SandboxLost."""
    await pod.kill_all(FILES_S)
    steps = _wipes(SCRATCH, [WORK, *WRITABLE])
    steps += _wipes(INPUTS, [str(index) for index in range(len(pod.shape.mounts))])
    steps += _wipes(KEPT, [f"{SNAPSHOT}-{name}" for name in (WORK, *WRITABLE)])
    kept = f"{KEPT}/{BASE}"
    steps.append(Step(("sum", kept), base) if pod.shape.base_from_image else Step(("wipe", kept), EMPTY))
    await _all(pod, steps)


def _wipes(root: str, names: Sequence[str]) -> list[Step]:
    return [Step(("wipe", f"{root}/{name}"), EMPTY) for name in names]


async def _all(pod: LivePod, steps: Sequence[Step]) -> list[str]:
    """The digests after each. All is sent before the first answer is read: the way to a pod is long."""

    async def talk(conversation: Call) -> list[str]:
        found = []
        for step in steps:
            await conversation.send(pack(*(word.encode() for word in step.words)) + step.then)
        for step in steps:
            digest = (await conversation.answer(" ".join(step.words))).decode(errors="replace")
            if step.expected not in (None, digest):
                raise Mismatch(f"pod {pod.pod}: {step.words[-1]} is not as it must be after {step.words[0]}")
            found.append(digest)
        return found

    return await pod.converse(KEEPER, talk, timeout_s=FILES_S)
