"""Recipe section of the sandboxes."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import Count, Positive, Seconds

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class KubernetesSection(Section):
    """Pods of a cluster, see docs/kubernetes.md; what each field means is said at `PodSettings` and `PoolSettings` of
    `gagar_sandbox.kubernetes`. Without `kubeconfig` the cluster is that of the pod that we run in, or the one that `kubectl`
    would use."""

    namespace: Name
    init_image: str
    image: str
    owner: Name = "gagar"
    kubeconfig: str | None = None
    context: str | None = None
    runtime_class: Name | None = "gvisor"
    user: Count = 1000
    read_only_root: bool = True
    volumes: Literal["memory", "disk"] = "memory"
    cpu: Annotated[str, Field(pattern=r"^[0-9]+m?$")] = "1"
    lifetime_s: Positive = 6 * 3600
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    spare: Count = 16
    idle_s: Seconds = 60.0
    uses: Positive = 64
    start_s: Seconds = 300.0
    unschedulable_s: Seconds = 300.0
    pull_s: Seconds = 120.0
    acquire_s: Seconds = 1800.0
    retry_s: Seconds = 120.0
    execs: Positive = 256

    def fields_of(self, settings: type[Any]) -> dict[str, Any]:
        """Those that a dataclass has too."""
        return {name: value for name, value in self if name in settings.__dataclass_fields__}


class ContainerSection(Section):
    """Containers of docker or podman on this machine; what each field means is said at `gagar_sandbox.container`."""

    engine: Literal["docker", "podman"] = "docker"
    image: str | None = None
    user: str | None = None
    runtime: str | None = None
    read_only_root: bool = False


class SandboxSection(Section):
    """Limits of every sandbox, and where they run: on this machine, in pods, in pods by way of agent-sandbox, or in containers of
    this machine. `concurrency` bounds how many sessions hold one at once (None: all that run). `images` is where `gagar sandbox
    import` has put images (None: the user's cache)."""

    backend: Literal["local", "kubernetes", "agent-sandbox", "container"] = "local"
    kubernetes: KubernetesSection | None = None
    container: ContainerSection | None = None
    memory_mb: Positive = 512
    processes: Positive = 64
    file_size_mb: Positive = 16
    disk_mb: Positive = 64
    command_timeout_s: Seconds = 10.0
    concurrency: Positive | None = None
    images: str | None = None

    def contradictions(self, agent: str) -> Iterator[str]:
        """agent: the recipe's agent.kind."""
        pods = self.backend in ("kubernetes", "agent-sandbox")
        if not pods and self.kubernetes is not None:
            yield f"sandbox.kubernetes: has no effect on {self.backend} sandboxes; set sandbox.backend=kubernetes"
        if pods and self.kubernetes is None:
            yield f"sandbox.kubernetes: required where sandbox.backend={self.backend}; give namespace, init_image and image"
        if self.backend != "container" and self.container is not None:
            yield "sandbox.container: has no effect without sandbox.backend=container; set it, or leave the section out"
        if self.backend != "local" and agent == "command":
            yield "agent.kind: command reaches the policy by a socket that only local sandboxes see; set sandbox.backend=local"
