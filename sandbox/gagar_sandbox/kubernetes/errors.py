"""What an API server can answer but what was asked for."""

from dataclasses import dataclass

PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})


@dataclass
class ApiError(Exception):
    """An answer with an error's status; 0: there was no answer. `retry_after_s` is what the server asked to wait. `allowed`: the
    same has been allowed before. A server that has just begun refuses all until it has read who may do what."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None
    allowed: bool = False

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}" if self.status else self.message

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: the server is away or busy, or others changed what it changes too."""
        if self.status == 409:
            return self.reason != "AlreadyExists"
        if self.status in (401, 403):
            return self.allowed or "exceeded quota" in self.message
        return self.status in PASSING
