"""Containers of pods for the fake API server and the virtual kubelet: bubblewrap instead of a container runtime.

What is real: namespaces, process 1, volumes with their sub-paths and read-only mounts, a read-only root, init containers in
their order, processes that an exec puts into a container from outside. What is not: every image is this machine's /usr, limits of
memory and disk do not bind, and the containers of a pod share no network namespace.
"""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gagar_sandbox.host import find_bwrap

START_S = 60.0
# Not bubblewrap's own --dev: its terminals take a second user namespace, which only root could enter.
DEVICES = [
    *("--tmpfs", "/dev"),
    *(word for name in ("null", "zero", "full", "random", "urandom") for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
]
ROOT_LINKS = ("bin", "sbin", "lib", "lib64")


class Containers:
    """The containers of one pod; `image_init` is what the image of the pool's own program holds at /gagar-init, `image_files` are
    texts that every other image has by their place."""

    def __init__(self, pod: dict[str, Any], folder: Path, image_init: Path, image_files: Mapping[str, str]) -> None:
        self._pod = pod
        self._folder = folder
        self._image_init = image_init
        self._image_files = image_files
        self._pids: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._changing = threading.Lock()
        self._removed = False

    async def exec(self, container: str, command: list[str]) -> Process:
        """The command in the container, which is started where it has not been yet: pods that nobody uses cost nothing."""
        await asyncio.to_thread(self._start)
        into = (
            "nsenter",
            "--target",
            str(self._pids[container]),
            "--user",
            "--preserve-credentials",
            "--mount",
            "--pid",
            "--net",
        )
        words = (*into, "--ipc", "--uts", "--root", "--wd", "--", *command)
        return await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def kill(self, container: str | None = None) -> None:
        """End one container, as the kernel does where memory ran out, or the whole pod."""
        for name, process in self._processes.items():
            if container in (None, name):
                process.kill()
                process.wait(START_S)

    def remove(self) -> None:
        with self._changing:
            self._removed = True
            self.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    def file(self, volume: str, path: str = "") -> Path:
        """Where a volume, or something in it, lies on this machine."""
        return self._folder / volume / path

    def _start(self) -> None:
        with self._changing:
            if self._removed:
                raise FileNotFoundError("the pod has gone")
            if not self._pids:
                self._start_all()

    def _start_all(self) -> None:
        spec = self._pod["spec"]
        for volume in spec["volumes"]:
            self.file(volume["name"]).mkdir(parents=True, exist_ok=True)
            self.file(volume["name"]).chmod(0o777)
        for container in spec["initContainers"]:
            subprocess.run(self._bwrap(container), check=True, timeout=START_S, stdin=DEVNULL)
        for container in spec["containers"]:
            reading, writing = os.pipe()
            with open(reading) as told:
                words = self._bwrap(container, "--info-fd", str(writing))
                process = self._processes[container["name"]] = subprocess.Popen(words, pass_fds=[writing], stdin=DEVNULL)
                os.close(writing)
                pid = json.load(told)["child-pid"]
            _wait_for(pid, container["command"][0], process)
            self._pids[container["name"]] = pid

    def _bwrap(self, container: dict[str, Any], *options: str) -> list[str]:
        mounts = []
        for mount in container["volumeMounts"]:
            source = self.file(mount["name"], mount.get("subPath", ""))
            source.mkdir(exist_ok=True)
            source.chmod(0o777)
            mounts += ["--ro-bind" if mount.get("readOnly") else "--bind", str(source), mount["mountPath"]]
        variables = [word for pair in container.get("env", []) for word in ("--setenv", pair["name"], pair["value"])]
        root = ["--remount-ro", "/"] if container["securityContext"]["readOnlyRootFilesystem"] else []
        own = ["--uid", "1000", "--gid", "1000"] if os.geteuid() == 0 else []
        return [
            *(str(find_bwrap()), "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", *own),
            *("--cap-drop", "ALL", "--ro-bind", "/usr", "/usr", "--proc", "/proc", *DEVICES, *options),
            *(word for name in ROOT_LINKS for word in ("--symlink", f"usr/{name}", f"/{name}")),
            *("--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "KUBERNETES_SERVICE_HOST", "10.0.0.1", *variables),
            *("--ro-bind", str(self._image_init), "/gagar-init", *self._image(), *mounts, *self._cgroup(container), *root),
            *("--chdir", container.get("workingDir", "/"), "--", *container["command"]),
        ]

    def _image(self) -> Iterator[str]:
        for index, (place, text) in enumerate(self._image_files.items()):
            file = self._folder / f"image-{index}"
            file.write_text(text)
            yield from ("--ro-bind", str(file), place)

    def _cgroup(self, container: dict[str, Any]) -> list[str]:
        """A control group that tells of no kills yet; what a test writes there it tells from then on."""
        told = self._folder / f"{container['name']}.memory.events"
        told.write_text("low 0\noom 0\noom_kill 0\n")
        return ["--ro-bind", str(told), "/sys/fs/cgroup/memory.events"]

    def memory_kill(self, container: str) -> None:
        """The kernel has killed a process of the container for want of memory."""
        (self._folder / f"{container}.memory.events").write_text("low 0\noom 1\noom_kill 1\n")


def _wait_for(pid: int, program: str, process: subprocess.Popen[bytes]) -> None:
    """Until bubblewrap has become the program; before that its namespaces are not ready to be entered."""
    end = time.monotonic() + START_S
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(program.encode() + b"\0"):
        if time.monotonic() > end or process.poll() is not None:
            raise TimeoutError(f"{program} has not begun")
        time.sleep(0.001)
