"""A context that is full begins anew: the task, a few lines on what was done, and the last turns as they were."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gagar_mcore.agent.calls import CallError, Tool, after_thinking
from gagar_mcore.agent.renderer import Renderer
from gagar_mcore.agent.transcript import Transcript
from gagar_mcore.records.types import Turn

WIDTHS = (1000, 300, 100, 40)  # characters of a call, and of its result, in the lines on what was done
_SUMMARY = "{prompt}\n\nYour context was full and begins anew. What you did until now:\n{lines}"
_LEFT_OUT = "({count} more turns before)"


@dataclass(frozen=True, slots=True)
class Compaction:
    """`most`: tokens that an opening may have, room for a turn behind it left out."""

    renderer: Renderer
    tools: Sequence[Tool]
    most: int

    def opening(self, prompt: str, transcript: Transcript) -> list[int] | None:
        """The first tokens of the next segment, all of them context. Beside the prompt they take at most half of what there is
        room for; of that, turns as they were take at most half. None where the prompt itself leaves no room."""
        shortest = self._prompt(prompt)
        room = (self.most - len(shortest)) // 2
        if room <= 0:
            return None
        kept = self._last_turns(transcript, room // 2)
        earlier = transcript.turns[: len(transcript.turns) - len(kept)]
        tail = [token for ids in kept for token in ids]
        most = len(shortest) + room - len(tail)
        return self._prompt(summarised(prompt, earlier, lambda text: len(self._prompt(text)) <= most)) + tail

    def _prompt(self, text: str) -> list[int]:
        return self.renderer.prompt(text, self.tools)

    def _last_turns(self, transcript: Transcript, most: int) -> list[list[int]]:
        """Answer and observation of as many of the last turns as `most` tokens hold, in order; answers with their own ids."""
        kept: list[list[int]] = []
        for turn, (start, end) in zip(reversed(transcript.turns), reversed(transcript.answers), strict=True):
            ids = [*transcript.token_ids[start:end], *self.renderer.observation(turn.observation)]
            most -= len(ids)
            if most < 0:
                break
            kept.insert(0, ids)
        return kept


def summarised(prompt: str, turns: Sequence[Turn], fits: Callable[[str], bool]) -> str:
    """The prompt with a line on each turn that `fits`: narrower lines rather than fewer, then the latest ones. The bare prompt
    where not one line does."""
    if not turns:
        return prompt
    for width in WIDTHS:
        if fits(text := _told(prompt, turns, len(turns), width)):
            return text
    shown = bisect_left(range(1, len(turns) + 1), True, key=lambda count: not fits(_told(prompt, turns, count, WIDTHS[-1])))
    text = _told(prompt, turns, shown, WIDTHS[-1])
    return text if shown and fits(text) else prompt


def _told(prompt: str, turns: Sequence[Turn], shown: int, width: int) -> str:
    left_out = len(turns) - shown
    lines = [_LEFT_OUT.format(count=left_out)] if left_out else []
    lines += [f"{turn.index + 1}. {_cut(_call(turn), width)} -> {_cut(turn.observation, width)}" for turn in turns[left_out:]]
    return _SUMMARY.format(prompt=prompt, lines="\n".join(lines))


def _call(turn: Turn) -> str:
    try:
        return after_thinking(turn.action)
    except CallError:
        return turn.action


def _cut(text: str, width: int) -> str:
    """On one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[:width]}..."
