"""The template of MiMo-V2: nothing between turns, tool output in a turn of its own role, calls as `<function=...>`.

After the published `chat_template` of MiMo-V2: thoughts of all turns are kept, as it does within one request, and the policy
decides whether to think. The words of the system turn are this project's own.
"""

import json
from collections.abc import Sequence

from gagar_mcore.agent.calls import CLOSE, OPEN, THINK, THOUGHT, Tool, XmlCalls
from gagar_mcore.agent.chatml import ChatMl, Pieces
from gagar_mcore.agent.vocabulary import Vocabulary


class MimoRenderer(ChatMl):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, XmlCalls())

    def prompt(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        system = self.turn("system", *self._tools(tools)) if tools else []
        return self.vocabulary.encode(*system, *self.turn("user", text), *self.generate())

    def observation(self, text: str) -> list[int]:
        shown = [self.piece("<tool_response>"), f"\n{text}\n", self.piece("</tool_response>"), "\n"]
        return self.vocabulary.encode(*self.turn("tool", *shown), *self.generate())

    def thinking(self, text: str) -> Pieces:
        return [self.piece(THINK), text, self.piece(THOUGHT)]

    def _tools(self, tools: Sequence[Tool]) -> Pieces:
        listed = "".join(map(_described, tools))
        form = "\n<function=NAME>\n<parameter=NAME>VALUE</parameter>\n</function>\n"
        return [
            f"# Tools\n\nThese functions can be called:\n\n<tools>\n{listed}</tools>\n\nWrite a call in this form:\n",
            *(self.piece(OPEN), form, self.piece(CLOSE)),
            "\n\nA value is taken exactly as it stands, line breaks and spaces included. No call stands within thoughts.",
        ]


def _described(tool: Tool) -> str:
    parameters = "".join(
        f"<parameter>\n<name>{name}</name>\n<type>string</type>\n<description>{what}</description>\n</parameter>\n"
        for name, what in tool.parameters.items()
    )
    return (
        f"<function>\n<name>{tool.name}</name>\n<description>{tool.description}</description>\n"
        f"<parameters>\n{parameters}<required>{json.dumps(list(tool.parameters))}</required>\n</parameters>\n</function>\n"
    )
