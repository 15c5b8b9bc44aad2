"""Bounded, quoted renderings of text that others wrote."""

import json


def bounded(text: str, limit: int) -> str:
    """`text` with its middle left out where it is longer than `limit` characters; what is left out is stated in its place."""
    if len(text) <= limit:
        return text
    head, tail = limit // 2, limit - limit // 2
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"


def quoted(text: str, limit: int) -> str:
    """One line, in quotes, ASCII alone: a text cannot end its line or pass for another."""
    rest = f" (+{len(text) - limit} characters)" if len(text) > limit else ""
    return json.dumps(text[:limit]) + rest
