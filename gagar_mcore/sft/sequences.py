"""What is learnt from, as tokens and loss weights: rendered demonstrations and rendered conversations."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gagar_mcore.agent.calls import Answer, CallError
from gagar_mcore.agent.renderer import Renderer, render_session
from gagar_mcore.config.sft import SftSection
from gagar_mcore.randomness import numpy_rng
from gagar_mcore.records.columns import open_columns
from gagar_mcore.sft.conversation import Conversation, DataError, read_conversations, tools_of, turns_of
from gagar_mcore.sft.data import Sequence, write_sequences
from gagar_mcore.sft.demonstrations import Demonstration, demonstrations


def fill_training(directory: Path, section: SftSection, renderer: Renderer, seed: int) -> dict[str, Any]:
    """`steps * sequences_per_step` sequences in the order of training: fresh demonstrations, or the conversations, each pass over
    them in an order of its own, which follows from `seed`. Returns the manifest's metadata. Raises DataError."""
    count = section.steps * section.sequences_per_step
    if not section.data:
        shown = (render_demonstration(renderer, one, section.context_weight) for one in demonstrations(section, count, purpose=0))
        return write_sequences(directory, shown, section.sequences_per_step)
    with TemporaryDirectory(prefix=".rendered-", suffix=".tmp", dir=directory.parent) as folder:
        fill_once(Path(folder), section.data, renderer, 1)
        once = open_columns(Path(folder))
        bounds = once["cu_seqlens"]
        places = (slice(bounds[index], bounds[index + 1]) for index in training_order(len(bounds) - 1, count, seed))
        repeated = (Sequence(once["tokens"][place], once["loss_weights"][place]) for place in places)
        return write_sequences(directory, repeated, section.sequences_per_step)


def fill_once(directory: Path, files: tuple[str, ...], renderer: Renderer, per_step: int) -> dict[str, Any]:
    """Every conversation of the files once, in their order. Raises DataError."""
    read = read_conversations([Path(name) for name in files])
    meta = write_sequences(directory, (render_conversation(renderer, one, where) for where, one in read), per_step)
    if not meta["sequences"]:
        raise DataError(f"{', '.join(files)}: no conversation; each line is a JSON object with messages")
    return meta


def training_order(sequences: int, count: int, seed: int) -> Iterator[int]:
    """`count` numbers below `sequences`: all of them, shuffled, before any comes again."""
    passes = range(-(-count // sequences))
    orders = (numpy_rng(seed, "sft order", number).permutation(sequences) for number in passes)
    return map(int, islice(chain.from_iterable(orders), count))


def render_demonstration(renderer: Renderer, shown: Demonstration, context_weight: float) -> Sequence:
    """Loss weight 1 on actions, `context_weight` on the rest, 0 on the first token, which nothing predicts."""
    ids, mask = render_session(renderer, shown.prompt, [(Answer(action), seen) for action, seen in shown.turns])
    weights = np.where(np.asarray(mask) == 1, 1.0, context_weight).astype(np.float32)
    weights[0] = 0.0
    return Sequence(np.asarray(ids, np.int32), weights)


def render_conversation(renderer: Renderer, conversation: Conversation, where: str) -> Sequence:
    """The tokens that a policy reads and generates in such a session; loss weights are those of the messages on what an assistant
    says, the end of each answer included, and 0 on everything else. Raises DataError, which begins with `where`."""
    ids: list[int] = []
    weights: list[float] = []
    tools = tools_of(conversation)
    for turn in turns_of(conversation, where):
        read = renderer.following(turn.context) if ids else renderer.opening(turn.context, tools)
        try:
            said = renderer.answer(turn.answer)
        except CallError as error:
            raise DataError(f"{where}: messages: a call that the model's template cannot write: {error}") from error
        ids += read + said
        weights += [0.0] * len(read) + [turn.weight] * len(said)
    return Sequence(np.asarray(ids, np.int32), np.asarray(weights, np.float32))
