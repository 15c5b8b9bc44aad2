"""What the templates of Qwen3 and MiMo share: ChatML turns, `<|im_start|>ROLE`, a line break, the content, `<|im_end|>`."""

from collections.abc import Sequence
from itertools import groupby, takewhile

from gagar_mcore.agent.calls import CLOSE, OPEN, Answer, CallFormat, Tool, ToolCall
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.vocabulary import Vocabulary

Pieces = list[str | int]


class ChatMl:
    """Special tokens are looked up by name; of `<tool_call>`, `<think>` and `<tool_response>`, those which the tokenizer does not
    hold as tokens are text. Raises ValueError where it holds no `<|im_start|>` or `<|im_end|>`."""

    gap = ""  # what stands behind every turn

    def __init__(self, vocabulary: Vocabulary, calls: CallFormat) -> None:
        self.vocabulary = vocabulary
        self.calls = calls
        self.start, self.end = vocabulary.token("<|im_start|>"), vocabulary.token("<|im_end|>")
        end_of_text = vocabulary.find("<|endoftext|>")
        self.stop_token_ids: tuple[int, ...] = (self.end,) if end_of_text is None else (self.end, end_of_text)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    def decode(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids, self.stop_token_ids)

    def prompt(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        return self.opening([Context("user", text)], tools)

    def observation(self, text: str) -> list[int]:
        return self.following([Context("tool", text)])

    def opening(self, messages: Sequence[Context], tools: Sequence[Tool] = ()) -> list[int]:
        system = [message.text for message in takewhile(lambda message: message.role == "system", messages)]
        declared = self.declared(tools) if tools else []
        opening: Pieces = ["\n\n".join([*system, ""] if declared else system), *declared]
        turn = [*self.turn("system", *opening), self.gap] if system or tools else []
        return self.vocabulary.encode(*turn, *self.turns(messages[len(system) :]), *self.generate())

    def following(self, messages: Sequence[Context]) -> list[int]:
        return self.vocabulary.encode(self.gap, *self.turns(messages), *self.generate())

    def answer(self, answer: Answer) -> list[int]:
        said = [*self.thinking(answer.thinking), answer.text]
        for index, call in enumerate(answer.calls):
            said += self.between(first=index == 0 and not answer.text) + self.written(call)
        return self.vocabulary.encode(*said, self.end)

    def declared(self, tools: Sequence[Tool]) -> Pieces:
        """How the system turn describes the tools."""
        raise NotImplementedError

    def results(self, texts: Sequence[str]) -> Pieces:
        """The turn that shows what tools printed, for calls of one answer."""
        raise NotImplementedError

    def thinking(self, text: str) -> Pieces:
        """How thoughts are written before the words of an answer."""
        raise NotImplementedError

    def between(self, first: bool) -> Pieces:
        """What separates a call from what was said before it; `first`: nothing was."""
        return []

    def written(self, call: ToolCall) -> Pieces:
        return [self.piece(OPEN), self.calls.write(call), self.piece(CLOSE)]

    def piece(self, name: str) -> str | int:
        return self.vocabulary.piece(name)

    def turns(self, messages: Sequence[Context]) -> Pieces:
        said: Pieces = []
        for of_tools, grouped in groupby(messages, key=lambda message: message.role == "tool"):
            group = list(grouped)
            turns = [self.results([m.text for m in group])] if of_tools else [self.turn(m.role, m.text) for m in group]
            said += [piece for turn in turns for piece in (*turn, self.gap)]
        return said

    def turn(self, role: str, *content: str | int) -> Pieces:
        return [self.start, f"{role}\n", *content, self.end]

    def generate(self) -> Pieces:
        """The opening of the turn that the policy then writes."""
        return [self.start, "assistant\n"]
