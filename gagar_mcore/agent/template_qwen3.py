"""The template of Qwen3: a line break behind every turn, tool output in a user turn, calls as JSON.

After the published `chat_template` of Qwen3: thoughts of all turns are kept, as it does within one request, and the policy
decides whether to think. The words that introduce the tools are this project's own.
"""

import json
from collections.abc import Sequence

from gagar_mcore.agent.calls import CLOSE, OPEN, THINK, THOUGHT, Answer, JsonCalls, Tool
from gagar_mcore.agent.chatml import ChatMl, Pieces
from gagar_mcore.agent.vocabulary import Vocabulary


class Qwen3Renderer(ChatMl):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, JsonCalls())

    def prompt(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        system = [*self.turn("system", *self._tools(tools)), "\n"] if tools else []
        return self.vocabulary.encode(*system, *self.turn("user", text), "\n", *self.generate())

    def observation(self, text: str) -> list[int]:
        shown = [self.piece("<tool_response>"), f"\n{text}\n", self.piece("</tool_response>")]
        return self.vocabulary.encode("\n", *self.turn("user", *shown), "\n", *self.generate())

    def thinking(self, text: str) -> Pieces:
        return [self.piece(THINK), f"\n{text}\n", self.piece(THOUGHT), "\n\n"] if text else []

    def between(self, answer: Answer) -> Pieces:
        return ["\n"] if answer.text else []

    def _tools(self, tools: Sequence[Tool]) -> Pieces:
        listed = "".join(f"{json.dumps(_schema(tool), ensure_ascii=False)}\n" for tool in tools)
        return [
            f"# Tools\n\nThese functions can be called:\n<tools>\n{listed}</tools>\n\nWrite a call in this form:\n",
            *(self.piece(OPEN), '\n{"name": <function-name>, "arguments": <args-json-object>}\n', self.piece(CLOSE)),
        ]


def _schema(tool: Tool) -> dict[str, object]:
    properties = {name: {"type": "string", "description": what} for name, what in tool.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}
