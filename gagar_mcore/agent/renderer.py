"""Token-exact rendering of sessions, by the template of the checkpoint's model.

A session renders what comes from outside, piece by piece, and joins ids: the model's own ids are kept as they were
generated, and no id depends on a neighbour's text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from gagar_mcore.agent.calls import Answer, CallFormat, Tool
from gagar_mcore.agent.context import Context
from gagar_mcore.agent.template_mimo import MimoRenderer
from gagar_mcore.agent.template_qwen3 import Qwen3Renderer
from gagar_mcore.agent.template_tiny import TinyRenderer
from gagar_mcore.agent.tokenizer import MARKERS
from gagar_mcore.agent.vocabulary import Vocabulary
from gagar_mcore.models.huggingface import read_family

TOKENIZER_FILE = "tokenizer.json"


class Renderer(Protocol):
    """How text becomes token ids. Text never becomes a special token: a literal `<|im_end|>` in it is encoded as its characters.
    Generated ids are never rendered again."""

    @property
    def calls(self) -> CallFormat: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...
    def prompt(self, text: str, tools: Sequence[Tool] = ()) -> list[int]:
        """The opening of a session, up to where the policy's first answer begins."""

    def observation(self, text: str) -> list[int]:
        """What follows an answer, up to where the next one begins."""

    def opening(self, messages: Sequence[Context], tools: Sequence[Tool] = ()) -> list[int]:
        """`prompt` of several messages, those of the system first."""

    def following(self, messages: Sequence[Context]) -> list[int]:
        """`observation` of several messages."""

    def answer(self, answer: Answer) -> list[int]:
        """What a policy would generate to say this, its stop token included. Raises CallError for a call that cannot be said."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of generated ids, a closing stop token left out. Never fails: bytes that are no UTF-8 become U+FFFD."""


def load_renderer(directory: Path) -> Renderer:
    """The renderer of a checkpoint directory, by the special tokens of its tokenizer: markers of small policies, or ChatML,
    written as the family in `config.json` writes it, and for a model of none as Qwen3 does. Raises ValueError where one of the
    files is absent or unfit."""
    path = directory / TOKENIZER_FILE
    if not path.is_file():
        raise ValueError(f"{path}: no such file, a checkpoint directory must hold its tokenizer")
    try:
        vocabulary = Vocabulary(Tokenizer.from_file(str(path)))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(f"{path}: {error}") from error
    chatml = vocabulary.find("<|im_start|>") is not None
    family = read_family(directory) or "qwen3_moe" if chatml else None
    try:
        return _of_family(vocabulary, family)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def render_session(
    renderer: Renderer, prompt: str, turns: Sequence[tuple[Answer, str]], tools: Sequence[Tool] = ()
) -> tuple[list[int], list[int]]:
    """A whole session of (answer, observation): ids and loss mask `[num_tokens]`, 1 exactly on what a policy generates, the end
    of each answer included. An empty observation after the last answer is left out: the session is over. Raises CallError."""
    ids = renderer.prompt(prompt, tools)
    mask = [0] * len(ids)
    for index, (answer, observation) in enumerate(turns):
        generated = renderer.answer(answer)
        over = index == len(turns) - 1 and not observation
        context = [] if over else renderer.observation(observation)
        ids += generated + context
        mask += [1] * len(generated) + [0] * len(context)
    return ids, mask


def _of_family(vocabulary: Vocabulary, family: str | None) -> Renderer:
    match family:
        case "mimo_v2":
            return MimoRenderer(vocabulary)
        case "qwen3_moe":
            return Qwen3Renderer(vocabulary)
    if all(vocabulary.find(marker) is None for marker in MARKERS):
        raise ValueError("tokenizer: holds neither <|im_start|>, as that of Qwen3 and MiMo does, nor markers of small policies")
    return TinyRenderer(vocabulary)
