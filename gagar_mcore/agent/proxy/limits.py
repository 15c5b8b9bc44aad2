"""What an outside agent may use of the proxy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Bytes are those of request bodies, and 4,096 a request; tokens those of all segments of a session, contexts included.
    `calls` is how many may be at work at once, `connections` how many may be open."""

    request_bytes: int = 4 << 20
    session_bytes: int = 256 << 20
    session_tokens: int = 1 << 22
    calls: int = 1
    connections: int = 16
