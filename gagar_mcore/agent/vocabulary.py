"""Text to token ids and back, where no text can become a special token."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer


class Vocabulary:
    """A `tokenizers.Tokenizer` read so that its added tokens (`<|im_end|>`, `<tool_call>`) come from ids alone: in a text they
    are encoded as the characters they are, whether or not its file calls them special.

    Raises ValueError where text can spell an added token all the same.
    """

    def __init__(self, tokenizer: Any) -> None:
        written = json.loads(tokenizer.to_str())
        for added in written["added_tokens"]:
            added["special"] = True
        self._tokenizer = Tokenizer.from_str(json.dumps(written))
        self._tokenizer.encode_special_tokens = True
        self._added = {added["content"]: int(added["id"]) for added in written["added_tokens"]}
        spelled = set(self._added.values())
        for name in self._added:
            if spelled.intersection(self.encode(name)):
                raise ValueError(f"tokenizer: the text {name} is encoded as the token")

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def find(self, name: str) -> int | None:
        """The id of an added token; None where the tokenizer has none of this name."""
        return self._added.get(name)

    def token(self, name: str) -> int:
        """The id of an added token that must be there. Raises ValueError."""
        if name not in self._added:
            raise ValueError(f"tokenizer: holds no special token {name}")
        return self._added[name]

    def piece(self, name: str) -> int | str:
        """The id of an added token, or the name as text where the tokenizer has none of it."""
        return self._added.get(name, name)

    def encode(self, *pieces: str | int) -> list[int]:
        """Ids of texts and of tokens given by their ids. Texts side by side are encoded as one, as if they had been read so."""
        ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                ids += [*self._encode_text(text), piece]
                text = ""
        return ids + self._encode_text(text)

    def decode(self, ids: Sequence[int], stop_token_ids: Sequence[int]) -> str:
        """The text of generated ids, a closing stop token left out. Never fails: bytes that are no UTF-8 become U+FFFD."""
        ended = len(ids) > 0 and ids[-1] in stop_token_ids
        return str(self._tokenizer.decode(list(ids[:-1] if ended else ids), skip_special_tokens=False))

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        encodable = text.encode(errors="replace").decode()  # file contents may carry surrogate escapes
        # The batch of one lets other threads run meanwhile, and finds no offsets, which nobody asks for.
        [encoding] = self._tokenizer.encode_batch_fast([encodable], add_special_tokens=False)
        return list(encoding.ids)
