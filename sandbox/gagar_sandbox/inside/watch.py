"""What the processes of the sandbox use together, counted from /proc: for hosts where no cgroup does it."""

import os

PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Limits on memory (bytes) and on processes and threads of everything but PID 1; 0 is no limit."""

    def __init__(self, memory: int, processes: int) -> None:
        self._memory = memory
        self._processes = processes

    def verdict(self) -> tuple[bytes, bytes] | None:
        """The outcome and a note for stderr where a limit is passed."""
        if not self._memory and not self._processes:
            return None
        pids = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        # Asked before anything that takes time for each: a fork bomb grows while it is counted.
        if len(pids) > (self._processes or len(pids)):
            return b"exited", self._too_many()
        usage = [found for pid in pids if (found := _usage(pid))]
        if self._processes and sum(tasks for _, tasks, _ in usage) > self._processes:
            return b"exited", self._too_many()
        if self._memory and _exceeds(self._memory, {pid: resident for pid, _, resident in usage}):
            return b"out_of_memory", b""
        return None

    def _too_many(self) -> bytes:
        return b"killed: more than %d processes\n" % self._processes


def _usage(pid: str) -> tuple[str, int, int] | None:
    """Pid, threads and resident bytes; None where the process has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return pid, int(fields[17]), int(fields[21]) * PAGE


def _exceeds(limit: int, resident: dict[str, int]) -> bool:
    """Whether memory is over the limit once pages shared by several processes count once: exact, slow, and so asked last."""
    return sum(resident.values()) > limit and sum(_proportional(pid, most) for pid, most in resident.items()) > limit


def _proportional(pid: str, resident: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except OSError:
        return resident
