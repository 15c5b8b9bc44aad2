"""Token-exact rendering of sessions: `<|user|> prompt <|act|> action <|end|> <|obs|> observation <|act|> action <|end|>`.

A session renders what comes from outside, piece by piece, and joins ids: the model's own ids are kept as they were
generated, and no id depends on a neighbour's text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gagar_mcore.agent.tokenizer import ACT, END, MARKERS, OBS, USER

TOKENIZER_FILE = "tokenizer.json"


class Renderer:
    """Markers around plain text. Text never becomes a marker: a literal `<|end|>` in it is encoded as its characters.

    Raises ValueError where `tokenizer` does not hold `MARKERS` as ids 0 to 4 or can spell one of them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # special tokens in a text are encoded as the text they are
        for index, marker in enumerate(MARKERS):
            if tokenizer.token_to_id(marker) != index:
                raise ValueError(f"tokenizer: {marker} is id {tokenizer.token_to_id(marker)}, expected {index}")
            if index in self._encode(marker):
                raise ValueError(f"tokenizer: the text {marker} is encoded as the marker")

    @classmethod
    def load(cls, directory: Path) -> "Renderer":
        """The renderer of a checkpoint directory. Raises ValueError where its tokenizer.json is absent or unfit."""
        path = directory / TOKENIZER_FILE
        if not path.is_file():
            raise ValueError(f"{path}: no such file, a checkpoint directory must hold its tokenizer")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ValueError(f"{path}: {error}") from error

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (END,)

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def prompt(self, text: str) -> list[int]:
        return [USER, *self._encode(text), ACT]

    def observation(self, text: str) -> list[int]:
        return [OBS, *self._encode(text), ACT]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of generated ids, a closing stop token left out. Never fails: bytes that are no UTF-8 become U+FFFD."""
        ended = len(ids) > 0 and ids[-1] == END
        return str(self._tokenizer.decode(list(ids[:-1] if ended else ids), skip_special_tokens=False))

    def render(self, prompt: str, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """A whole session of (action, observation): ids and loss mask `[num_tokens]`, 1 exactly on what a policy generates,
        the end of each action included. An empty observation after the last action is left out: the session is over."""
        ids = self.prompt(prompt)
        mask = [0] * len(ids)
        for index, (action, observation) in enumerate(turns):
            generated = [*self._encode(action), END]
            over = index == len(turns) - 1 and not observation
            context = [] if over else self.observation(observation)
            ids += generated + context
            mask += [1] * len(generated) + [0] * len(context)
        return ids, mask

    def _encode(self, text: str) -> list[int]:
        encodable = text.encode(errors="replace").decode()  # file contents may carry surrogate escapes
        return list(self._tokenizer.encode(encodable, add_special_tokens=False).ids)
