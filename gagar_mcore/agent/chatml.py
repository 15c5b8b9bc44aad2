"""What the templates of Qwen3 and MiMo share: ChatML turns, `<|im_start|>ROLE`, a line break, the content, `<|im_end|>`."""

from collections.abc import Sequence

from gagar_mcore.agent.calls import CLOSE, OPEN, Answer, CallFormat, ToolCall
from gagar_mcore.agent.vocabulary import Vocabulary

Pieces = list[str | int]


class ChatMl:
    """Special tokens are looked up by name; of `<tool_call>`, `<think>` and `<tool_response>`, those which the tokenizer does not
    hold as tokens are text. Raises ValueError where it holds no `<|im_start|>` or `<|im_end|>`."""

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

    def answer(self, answer: Answer) -> list[int]:
        said = [*self.thinking(answer.thinking), answer.text]
        if answer.call is not None:
            said += self.between(answer) + self.written(answer.call)
        return self.vocabulary.encode(*said, self.end)

    def thinking(self, text: str) -> Pieces:
        """How thoughts are written before the words of an answer."""
        raise NotImplementedError

    def between(self, answer: Answer) -> Pieces:
        """What separates the words of an answer from its call."""
        return []

    def written(self, call: ToolCall) -> Pieces:
        return [self.piece(OPEN), self.calls.write(call), self.piece(CLOSE)]

    def piece(self, name: str) -> str | int:
        return self.vocabulary.piece(name)

    def turn(self, role: str, *content: str | int) -> Pieces:
        return [self.start, f"{role}\n", *content, self.end]

    def generate(self) -> Pieces:
        """The opening of the turn that the policy then writes."""
        return [self.start, "assistant\n"]
