"""The command lines that an engine is given; docker and podman read the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gagar_sandbox.types import SandboxSpec

RUN, OWNER = "gagar.run", "gagar.owner"
OPEN_FILES = 1024
# Of the processes that hold a container open: another than that of commands, which for want of capabilities cannot end them.
HOLDER, ROOT = "59999:59999", "0:0"
KILL_ALL = """kill -9 -1
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control
do test ! -r $file || while read -r line; do echo "$line"; done < $file
done"""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """`run` names what is ours among all containers of this machine. `engine`: docker or podman. `image`: of specs without one.
    `user`: a name or number inside, of the commands (None: root, without any capability, whose the files of a base are).
    `runtime`: such as runsc, for gVisor. With `read_only_root` only the workdir and /tmp can be written, and a base is needed."""

    run: str
    engine: str = "docker"
    image: str | None = None
    user: str | None = None
    runtime: str | None = None
    read_only_root: bool = False


def create(settings: ContainerSettings, spec: SandboxSpec, image: str, owner: str, name: str) -> list[str]:
    """Start a container that does nothing. Raises ValueError where a path has a comma."""
    limits = spec.limits
    return [
        *(settings.engine, "run", "--detach", "--init", "--pull", "missing", "--network", "none", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--hostname", "sandbox", "--ipc", "private"),
        *("--name", name, "--label", f"{RUN}={settings.run}", "--label", f"{OWNER}={owner}", "--user", HOLDER),
        *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
        *("--pids-limit", str(limits.processes + 2), "--ulimit", "core=0", "--ulimit", f"nofile={OPEN_FILES}"),
        *("--ulimit", f"fsize={limits.file_size_mb << 20}", "--shm-size", f"{limits.disk_mb}m"),
        *("--tmpfs", f"/tmp:rw,exec,size={limits.disk_mb}m,mode=1777"),
        *(word for at, outside in sorted(spec.read_only.items()) for word in ("--mount", _bind(str(outside.resolve()), at))),
        *(("--runtime", settings.runtime) if settings.runtime else ()),
        *(("--read-only", "--mount", f"type=volume,dst={_plain(spec.workdir)}") if settings.read_only_root else ()),
        *("--workdir", spec.workdir, "--entrypoint", "sleep", image, "infinity"),
    ]


def execute(
    settings: ContainerSettings, container: str, workdir: str, command: Sequence[str], env: Mapping[str, str] | None = None
) -> list[str]:
    variables = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
    return [*_exec(settings), "--interactive", "--workdir", workdir, *variables, container, *command]


def kill_all(settings: ContainerSettings, container: str) -> list[str]:
    """Ends every process of the commands' user. Prints, among others, how often the kernel has killed for want of memory."""
    return [*_exec(settings), container, "sh", "-c", KILL_ALL]


def restart(settings: ContainerSettings, container: str) -> list[str]:
    """Ends every process, whatever has become of the container's shell; what is in /tmp goes too."""
    return [settings.engine, "restart", "--time", "0", container]


def bring_in(settings: ContainerSettings, container: str, folder: str, workdir: str) -> list[str]:
    return [settings.engine, "cp", f"{folder}/.", f"{container}:{workdir}"]


def commit(settings: ContainerSettings, container: str) -> list[str]:
    return [settings.engine, "commit", "--pause=true", container]


def state(settings: ContainerSettings, container: str) -> list[str]:
    """Prints whether it runs, and whether the kernel has killed in it for want of memory."""
    return [settings.engine, "inspect", "--format", "{{.State.Running}} {{.State.OOMKilled}}", container]


def remove(settings: ContainerSettings, containers: Sequence[str]) -> list[str]:
    return [settings.engine, "rm", "--force", "--volumes", *containers]


def remove_image(settings: ContainerSettings, image: str) -> list[str]:
    return [settings.engine, "rmi", "--force", image]


def of_this_run(settings: ContainerSettings) -> list[str]:
    """Prints the ids of the run's containers, of dead controllers and of this one, one a line with its owner."""
    form = f'{{{{.ID}}}} {{{{.Label "{OWNER}"}}}}'
    return [settings.engine, "ps", "--all", "--no-trunc", "--filter", f"label={RUN}={settings.run}", "--format", form]


def _exec(settings: ContainerSettings) -> tuple[str, ...]:
    return (settings.engine, "exec", "--user", settings.user or ROOT)


def _bind(outside: str, inside: str) -> str:
    return f"type=bind,src={_plain(outside)},dst={_plain(inside)},readonly"


def _plain(path: str) -> str:
    if "," in path or '"' in path or "\n" in path:
        raise ValueError(f"{path!r}: engines take no path with a comma, a quote or a line break")
    return path
