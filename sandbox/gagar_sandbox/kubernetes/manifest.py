"""The pod of a sandbox.

Two containers share volumes and nothing else. `main` runs the commands. `keeper` runs no code but ours, and what it keeps no
command can reach: the files to go back to, and the contents of what `main` sees read-only. So what it says can be believed.
"""

from collections.abc import Mapping
from typing import Any

from gagar_sandbox.kubernetes.settings import PodSettings
from gagar_sandbox.kubernetes.shape import Shape

MAIN, KEEPER = "main", "keeper"
INIT = "/gagar/init"
SCRATCH, INPUTS, KEPT = "/scratch", "/inputs", "/kept"  # in the keeper
WRITABLE = {"tmp": "/tmp", "var-tmp": "/var/tmp", "logs": "/logs", "shm": "/dev/shm"}  # below SCRATCH, and in main
WORK, BASE = "work", "base"
OVERHEAD_MB = 64
LABEL = "gagar.dev"

Json = dict[str, Any]


def labels(settings: PodSettings) -> dict[str, str]:
    """Of everything that a pool makes, and of nothing else."""
    return {f"{LABEL}/owner": settings.owner, f"{LABEL}/run": settings.run}


def selector(settings: PodSettings) -> str:
    return ",".join(f"{name}={value}" for name, value in labels(settings).items())


def pod_labels(settings: PodSettings, shape: Shape, name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "gagar-sandbox", **labels(settings), f"{LABEL}/shape": shape.id, f"{LABEL}/name": name}


def pod(settings: PodSettings, shape: Shape, name: str) -> Json:
    metadata = {"name": name, "namespace": settings.namespace, "labels": pod_labels(settings, shape, name)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(settings, shape)}


def pod_spec(settings: PodSettings, shape: Shape) -> Json:
    first = [_install(settings)] + ([_base(settings, shape)] if shape.base_from_image else [])
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": settings.lifetime_s,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": settings.user != 0,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": first,
        "containers": [_main(settings, shape), _keeper(settings, shape)],
        "volumes": _volumes(settings, shape),
    }
    if settings.runtime_class is not None:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in settings.tolerations]
    return spec


def _main(settings: PodSettings, shape: Shape) -> Json:
    scratch = {WORK: shape.workdir, **WRITABLE}
    mounts = [_mount("gagar", "/gagar", read_only=True)]
    mounts += [_mount("scratch", place, sub_path=name) for name, place in scratch.items()]
    mounts += [_mount("inputs", place, sub_path=str(index), read_only=True) for index, place in enumerate(shape.mounts)]
    memory = shape.limits.memory_mb + OVERHEAD_MB + _in_memory(settings, shape)
    disk = OVERHEAD_MB if settings.read_only_root else OVERHEAD_MB + shape.limits.disk_mb
    container = _container(settings, MAIN, shape.image, [INIT, "serve"], mounts, settings.cpu, memory, disk)
    container["workingDir"] = shape.workdir
    container["env"] = [{"name": "HOME", "value": "/tmp"}, {"name": "LANG", "value": "C.UTF-8"}]
    container["securityContext"]["readOnlyRootFilesystem"] = settings.read_only_root
    return container


def _keeper(settings: PodSettings, shape: Shape) -> Json:
    volumes = {"scratch": SCRATCH, "inputs": INPUTS, "kept": KEPT}
    mounts = [_mount("gagar", "/gagar", read_only=True), *(_mount(name, place) for name, place in volumes.items())]
    memory = OVERHEAD_MB + _in_memory(settings, shape)
    disk = OVERHEAD_MB + 4 * shape.limits.disk_mb
    return _container(settings, KEEPER, settings.init_image, [INIT, "idle"], mounts, "100m", memory, disk)


def _install(settings: PodSettings) -> Json:
    words = ["/gagar-init", "install", INIT]
    return _container(
        settings, "install", settings.init_image, words, [_mount("gagar", "/gagar")], "100m", OVERHEAD_MB, OVERHEAD_MB
    )


def _base(settings: PodSettings, shape: Shape) -> Json:
    mounts = [_mount("gagar", "/gagar", read_only=True), _mount("kept", KEPT)]
    words = [INIT, "copy", shape.workdir, f"{KEPT}/{BASE}"]
    return _container(settings, "base", shape.image, words, mounts, settings.cpu, OVERHEAD_MB, OVERHEAD_MB)


def _container(
    settings: PodSettings, name: str, image: str, command: list[str], mounts: list[Json], cpu: str, memory_mb: int, disk_mb: int
) -> Json:
    resources = {"cpu": cpu, "memory": f"{memory_mb}Mi", "ephemeral-storage": f"{disk_mb}Mi"}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }


def _volumes(settings: PodSettings, shape: Shape) -> list[Json]:
    size = shape.limits.disk_mb
    memory: Mapping[str, str] = {"medium": "Memory"} if settings.volumes == "memory" else {}
    return [
        {"name": "gagar", "emptyDir": {"sizeLimit": "16Mi"}},
        {"name": "scratch", "emptyDir": {**memory, "sizeLimit": f"{size}Mi"}},
        {"name": "inputs", "emptyDir": {"sizeLimit": f"{OVERHEAD_MB + size}Mi"}},
        {"name": "kept", "emptyDir": {"sizeLimit": f"{3 * size}Mi"}},
    ]


def _in_memory(settings: PodSettings, shape: Shape) -> int:
    """Megabytes of the scratch volume, which count for whoever writes them first."""
    return shape.limits.disk_mb if settings.volumes == "memory" else 0


def _mount(name: str, place: str, *, sub_path: str | None = None, read_only: bool = False) -> Json:
    mount: Json = {"name": name, "mountPath": place}
    if sub_path is not None:
        mount["subPath"] = sub_path
    if read_only:
        mount["readOnly"] = True
    return mount
