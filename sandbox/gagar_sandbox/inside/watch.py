"""What the processes of the sandbox use together, counted from /proc: for hosts where no cgroup does it."""

import os


class Watch:
    """Limits on memory (bytes) and on processes and threads of everything but PID 1; 0 is no limit.

    Memory is each process's own, and what it still shares with its parent since a fork counts for both: what tells them apart,
    smaps_rollup, waits for locks that a fork bomb holds. Shared memory, bounded by the disk where it has a name, does not count.
    """

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
        usage = [_usage(pid) for pid in pids]
        if self._processes and sum(tasks for tasks, _ in usage) > self._processes:
            return b"exited", self._too_many()
        if self._memory and sum(memory for _, memory in usage) > self._memory:
            return b"out_of_memory", b""
        return None

    def _too_many(self) -> bytes:
        return b"killed: more than %d processes\n" % self._processes


def _usage(pid: str) -> tuple[int, int]:
    """Threads, and bytes of memory of its own; nothing where the process has gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            facts = dict(line.split(b":", 1) for line in file)
    except OSError:
        return 0, 0
    return int(facts[b"Threads"]), int(facts.get(b"RssAnon", b"0 kB").split()[0]) << 10
