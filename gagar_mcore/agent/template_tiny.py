"""The template of small policies: `<|user|> prompt <|act|> action <|end|> <|obs|> observation <|act|> action <|end|>`."""

from collections.abc import Sequence

from gagar_mcore.agent.calls import CLOSE, OPEN, THINK, THOUGHT, Answer, CallFormat, Tool, ToolCall, XmlCalls
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.tokenizer import ACT, END, MARKERS, OBS, USER
from gagar_mcore.agent.vocabulary import Vocabulary


class TinyRenderer:
    """Markers around plain text; thoughts and calls are text as well. Raises ValueError where the vocabulary does not hold
    `MARKERS` as ids 0 to 4."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        for index, marker in enumerate(MARKERS):
            if (found := vocabulary.find(marker)) != index:
                raise ValueError(f"tokenizer: {marker} is id {found}, expected {index}")

    @property
    def calls(self) -> CallFormat:
        return XmlCalls()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (END,)

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    def prompt(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        return self.opening([Context("user", text)], tools)

    def observation(self, text: str) -> list[int]:
        return self.following([Context("tool", text)])

    def opening(self, messages: Sequence[Context], tools: Sequence[Tool] = ()) -> list[int]:
        text = "\n\n".join(message.text for message in messages)
        shown = (f"\n\n{self._written(_example(tool))}\n{tool.description}" for tool in tools)
        return self._vocabulary.encode(USER, text, *shown, ACT)

    def following(self, messages: Sequence[Context]) -> list[int]:
        said = (piece for message in messages for piece in (OBS if message.role == "tool" else USER, message.text))
        return self._vocabulary.encode(*said, ACT)

    def answer(self, answer: Answer) -> list[int]:
        thinking = f"{THINK}{answer.thinking}{THOUGHT}" if answer.thinking else ""
        return self._vocabulary.encode(thinking, answer.text, *map(self._written, answer.calls), END)

    def decode(self, ids: Sequence[int]) -> str:
        return self._vocabulary.decode(ids, self.stop_token_ids)

    def _written(self, call: ToolCall) -> str:
        return f"{OPEN}{self.calls.write(call)}{CLOSE}"


def _example(tool: Tool) -> ToolCall:
    return ToolCall(tool.name, {name: name.upper() for name in tool.schema.get("properties", {})})
