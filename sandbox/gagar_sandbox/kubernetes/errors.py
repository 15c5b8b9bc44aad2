"""What an API server can answer but what was asked for."""

from dataclasses import dataclass

PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})


@dataclass
class ApiError(Exception):
    """An answer with an error's status; 0: there was no answer. `retry_after_s` is what the server asked to wait."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}" if self.status else self.message

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: the server is away or busy, or others changed what it changes too."""
        return self.status in PASSING or (self.status == 409 and self.reason != "AlreadyExists") or self.quota_is_full

    @property
    def quota_is_full(self) -> bool:
        return self.status == 403 and "exceeded quota" in self.message
