"""What a pod's object says of it."""

from dataclasses import dataclass
from typing import Any, Literal

from gagar_sandbox.kubernetes.manifest import LABEL, MAIN

HOPELESS = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodState:
    """`starting`: for `reason`, if it says one. `ended`: it will never, or never again, run a command. `pod` is its own name,
    `name` the one that its pool gave it."""

    name: str
    pod: str
    phase: Literal["starting", "ready", "ended"]
    reason: str = ""
    message: str = ""

    @property
    def out_of_memory(self) -> bool:
        return self.reason == "OOMKilled"

    def __str__(self) -> str:
        return f"pod {self.pod}: {self.reason or self.phase}{f', {self.message}' if self.message else ''}"


def read_state(pod: Json) -> PodState:
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]

    def state(phase: Literal["starting", "ready", "ended"], reason: str = "", message: str = "") -> PodState:
        name = (metadata.get("labels") or {}).get(f"{LABEL}/name", metadata["name"])
        return PodState(name, metadata["name"], phase, reason, message)

    if killed := _terminated(containers):
        return state("ended", *killed)
    if metadata.get("deletionTimestamp"):
        return state("ended", status.get("reason") or "Deleted", _disruption(status) or status.get("message", ""))
    if status.get("phase") in ("Failed", "Succeeded", "Unknown"):
        return state("ended", status.get("reason") or status["phase"], status.get("message", ""))
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            return state("ended", waiting["reason"], waiting.get("message", ""))
        if waiting.get("reason") in PULLING:
            return state("starting", "ImagePull", f"{waiting['reason']} {waiting.get('message', '')}".strip())
    return state(*_progress(status))


def _terminated(containers: list[Json]) -> tuple[str, str] | None:
    """Why a container that should run for ever does not, or did not all the time."""
    for container in containers:
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            ended = state.get("terminated")
            if not ended or (ended.get("exitCode") == 0 and container["name"] not in (MAIN, "keeper")):
                continue
            reason = ended.get("reason") or "Error"
            # Only what the policy's own container used up is the policy's doing.
            return (reason if container["name"] == MAIN or reason != "OOMKilled" else "KeeperOOMKilled"), (
                f"container {container['name']} ended with {ended.get('exitCode')} {ended.get('message', '')}".strip()
            )
    return None


def _progress(status: Json) -> tuple[Literal["starting", "ready"], str, str]:
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if status.get("phase") == "Running" and conditions.get("Ready", {}).get("status") == "True":
        return "ready", "", ""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return "starting", scheduled.get("reason", ""), scheduled.get("message", "")
    return "starting", "", ""


def _disruption(status: Json) -> str:
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
    return ""
