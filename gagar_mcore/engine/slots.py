"""Which cache row belongs to which session."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One cache row. cached: the token ids whose keys and values it holds, from position 0 on."""

    row: int
    cached: list[int] = field(default_factory=list)


class SlotPool:
    """Rows are kept between the turns of a session; when they run out, the one idle for longest is given away."""

    def __init__(self, rows: int) -> None:
        self._free = [Slot(row) for row in reversed(range(rows))]
        self._idle: dict[str, Slot] = {}  # in order of release

    def acquire(self, session_id: str) -> Slot | None:
        """The session's own row, else an empty one, else the one idle for longest; None while all of them are at work."""
        if session_id in self._idle:
            return self._idle.pop(session_id)
        if not self._free and self._idle:
            self.forget(next(iter(self._idle)))
        return self._free.pop() if self._free else None

    def release(self, session_id: str, slot: Slot) -> None:
        self._idle[session_id] = slot

    def forget(self, session_id: str) -> None:
        """Free the row of an idle session; unknown sessions are ignored."""
        slot = self._idle.pop(session_id, None)
        if slot is not None:
            self._free.append(Slot(slot.row))
