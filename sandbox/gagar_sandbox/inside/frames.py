"""Frames between the host and PID 1: a 4-byte length, then fields, each behind a 4-byte length of its own."""


def pack(*fields: bytes) -> bytes:
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """The fields of one frame's body. Raises ValueError where a length points outside it."""
    fields = []
    at = 0
    while at < len(body):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "big")
        if at > len(body):
            raise ValueError("a field runs past the end of its frame")
        fields.append(body[start:at])
    return fields
