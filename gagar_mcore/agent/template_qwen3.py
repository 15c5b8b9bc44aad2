"""The template of Qwen3: a line break behind every turn, tool output in a user turn, calls as JSON.

After the published `chat_template` of Qwen3: thoughts of all turns are kept, as it does within one request, and the policy
decides whether to think. The words that introduce the tools are this project's own.
"""

import json
from collections.abc import Sequence

from gagar_mcore.agent.calls import CLOSE, OPEN, THINK, THOUGHT, JsonCalls, Tool
from gagar_mcore.agent.chatml import ChatMl, Pieces
from gagar_mcore.agent.vocabulary import Vocabulary


class Qwen3Renderer(ChatMl):
    gap = "\n"

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, JsonCalls())

    def results(self, texts: Sequence[str]) -> Pieces:
        opened, closed = self.piece("<tool_response>"), self.piece("</tool_response>")
        shown = [piece for text in texts for piece in ("\n", opened, f"\n{text}\n", closed)]
        return self.turn("user", *shown[1:])

    def thinking(self, text: str) -> Pieces:
        return [self.piece(THINK), f"\n{text}\n", self.piece(THOUGHT), "\n\n"] if text else []

    def between(self, first: bool) -> Pieces:
        return [] if first else ["\n"]

    def declared(self, tools: Sequence[Tool]) -> Pieces:
        listed = "".join(f"{json.dumps(_schema(tool), ensure_ascii=False)}\n" for tool in tools)
        return [
            f"# Tools\n\nThese functions can be called:\n<tools>\n{listed}</tools>\n\nWrite a call in this form:\n",
            *(self.piece(OPEN), '\n{"name": <function-name>, "arguments": <args-json-object>}\n', self.piece(CLOSE)),
        ]


def _schema(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
