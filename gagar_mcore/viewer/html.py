"""HTML built from elements: text is escaped where it enters, so that no caller can forget to."""

import html

from gagar_mcore.tracking.text import visible

_VOID = {"meta"}


class Markup(str):
    """HTML that is safe to stand in a page. Only `element`, `join` and `raw` make it."""

    __slots__ = ()


Child = Markup | str | int | float | None
Attribute = str | int | float | bool | None


def raw(trusted: str) -> Markup:
    """Text of this program itself, taken as HTML."""
    return Markup(trusted)


def text(content: str) -> Markup:
    """Escaped text in which nothing is invisible, for element contents and quoted attribute values alike."""
    return Markup(html.escape(visible(content)))


def join(*children: Child) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else text(str(child)) for child in children if child is not None))


def element(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """`<tag name="value">children</tag>`. Strings among children and values are escaped; None is left out, True is a bare name.
    In attribute names a closing underscore falls away and others become hyphens. No caller makes names, links or handlers
    out of recorded text."""
    opening = "".join(_attribute(name, value) for name, value in attributes.items())
    return Markup(f"<{tag}{opening}>" if tag in _VOID else f"<{tag}{opening}>{join(*children)}</{tag}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    return f" {shown}" if value is True else f' {shown}="{text(str(value))}"'
