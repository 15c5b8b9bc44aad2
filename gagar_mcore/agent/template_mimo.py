"""The template of MiMo-V2: nothing between turns, tool output in a turn of its own role, calls as `<function=...>`.

After the published `chat_template` of MiMo-V2: thoughts of all turns are kept, as it does within one request, and the policy
decides whether to think. The words of the system turn are this project's own.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gagar_mcore.agent.calls import CLOSE, OPEN, THINK, THOUGHT, Tool, XmlCalls
from gagar_mcore.agent.chatml import ChatMl, Pieces
from gagar_mcore.agent.vocabulary import Vocabulary

_PLAIN = {"type": "string"}  # what a parameter is of which its schema says nothing


class MimoRenderer(ChatMl):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, XmlCalls())

    def results(self, texts: Sequence[str]) -> Pieces:
        opened, closed = self.piece("<tool_response>"), self.piece("</tool_response>")
        return self.turn("tool", *(piece for text in texts for piece in (opened, f"\n{text}\n", closed, "\n")))

    def thinking(self, text: str) -> Pieces:
        return [self.piece(THINK), text, self.piece(THOUGHT)]

    def declared(self, tools: Sequence[Tool]) -> Pieces:
        listed = "".join(map(_described, tools))
        form = "\n<function=NAME>\n<parameter=NAME>VALUE</parameter>\n</function>\n"
        return [
            f"# Tools\n\nThese functions can be called:\n\n<tools>\n{listed}</tools>\n\nWrite a call in this form:\n",
            *(self.piece(OPEN), form, self.piece(CLOSE)),
            "\n\nA value is taken exactly as it stands, line breaks and spaces included. No call stands within thoughts.",
        ]


def _described(tool: Tool) -> str:
    properties = tool.schema.get("properties", {})
    parameters = "".join(
        f"<parameter>\n<name>{name}</name>\n{_lines(_PLAIN | dict(what))}</parameter>\n" for name, what in properties.items()
    )
    required = json.dumps(list(tool.schema.get("required", ())))
    return (
        f"<function>\n<name>{tool.name}</name>\n<description>{tool.description}</description>\n"
        f"<parameters>\n{parameters}<required>{required}</required>\n</parameters>\n</function>\n"
    )


def _lines(parameter: Mapping[str, Any]) -> str:
    """Type and description, and whatever else its JSON schema says of it."""
    values = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in parameter.items()}
    return "".join(f"<{key}>{value}</{key}>\n" for key, value in values.items())
