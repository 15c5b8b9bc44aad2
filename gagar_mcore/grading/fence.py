"""Text of the policy, shown to a grader so that it can be taken for nothing but data."""

import re
import secrets
from dataclasses import dataclass
from typing import Self

from gagar_mcore.grading.text import bounded
from gagar_mcore.tracking.text import visible

FENCED_CHARACTERS = 16_000
LINE_CHARACTERS = 1_000

# Where a model's template could begin a turn, a call or a thought, whichever model it is.
_ANGLE = re.compile(
    r"[<\uff1c](?=[|\uff5c]|<\s*/?\s*SYS|/?(?:s|unk|pad|bos|eos|mask|cls|sep)>"
    r"|/?(?:think|thinking|tool_\w+|tools?|functions?|function_\w+|parameters?|invoke|start_of_\w+|end_of_\w+|begin_of_\w+"
    r"|im_start|im_end|system|user|assistant|human|model|turn|channel|message|fim_\w+)\b)",
    re.IGNORECASE,
)
_SQUARE = re.compile(r"\[(?=/?(?:INST|SYS|TOOL_\w+|AVAILABLE_TOOLS|SYSTEM_PROMPT|IMG|THINK|ARGS|CALL_ID)\])", re.IGNORECASE)


def inert(text: str, limit: int = FENCED_CHARACTERS) -> str:
    """`text` of at most about `limit` characters that steers nothing: what is invisible is shown by name, the control tokens of
    chat templates begin with another bracket and so are none, and long lines lose their middle."""
    shown = _SQUARE.sub("\u27e6", _ANGLE.sub("\u2039", visible(bounded(text, limit))))
    return bounded("\n".join(map(_short, shown.split("\n"))), limit)


def _short(line: str) -> str:
    return bounded(line, LINE_CHARACTERS).replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Fence:
    """Around every such text of one message. Its mark is drawn for that message, so no text can have been written to match it."""

    mark: str

    @classmethod
    def drawn(cls) -> Self:
        return cls(secrets.token_hex(8))

    def wrap(self, label: str, text: str, limit: int = FENCED_CHARACTERS) -> str:
        """label: what it is, in words of ours. No line of `text` can be the closing one."""
        inside = re.sub(self.mark, "(mark)", inert(text, limit), flags=re.IGNORECASE)
        return f"[data {self.mark}: {label}]\n{inside}\n[end {self.mark}]"
