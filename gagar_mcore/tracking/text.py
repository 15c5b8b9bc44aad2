"""Text of unknown origin, made fit for display: what is invisible or steers a terminal or a reader's eye becomes visible."""

import unicodedata

_CONTROL_PICTURES = 0x2400
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    """`text` with everything that hides or reorders what is read shown by name.

    Control characters become their pictures (ESC is ␛), escaped bytes `\\xNN`, and format characters (such as the
    right-to-left override), lone surrogates and line separators ⟨U+NNNN⟩. Newline and tab stay. The result encodes as UTF-8.
    """
    return text.translate(_TABLE)


def clip(text: str, limit: int) -> str:
    """The first `limit` characters, and how many more there were."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit:,} more characters]"


class _Visible(dict[int, int | str]):
    """Translation table filled on demand: code point to replacement."""

    def __missing__(self, code: int) -> int | str:
        self[code] = replacement = _replacement(code)
        return replacement


def _replacement(code: int) -> int | str:
    if code in (0x09, 0x0A) or unicodedata.category(chr(code)) not in _HIDDEN_CATEGORIES:
        return code
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == 0x7F:
        return "␡"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"⟨U+{code:04X}⟩"


_TABLE = _Visible()
