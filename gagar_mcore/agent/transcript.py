"""Every token of a session, as it was read or generated."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gagar_mcore.engine.protocol import Generation, RoutedTokens
from gagar_mcore.records.expert_index import ExpertIndex, StoredRows
from gagar_mcore.records.experts import UNKNOWN, Experts
from gagar_mcore.records.types import Turn, WeightSpan


@dataclass(slots=True)
class Transcript:
    """The session so far; `token_ids` (int32), `logprobs` (float32) and `loss_mask` (uint8) always have equal lengths: nine bytes
    a token, since thousands of sessions live at once. `segment_starts` as in a `Trajectory`; `answers`: the tokens `[start, end)`
    that each turn generated."""

    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    loss_mask: "array[int]" = field(default_factory=lambda: array("B"))
    weight_spans: list[WeightSpan] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    routed: list[RoutedTokens] = field(default_factory=list)
    segment_starts: list[int] = field(default_factory=lambda: [0])
    answers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def context(self) -> "array[int]":
        """What the policy reads next: the newest segment. The only one is no copy: it grows once the turn is over."""
        start = self.segment_starts[-1]
        return self.token_ids[start:] if start else self.token_ids

    @property
    def context_length(self) -> int:
        return len(self.token_ids) - self.segment_starts[-1]

    def begin_segment(self, ids: Sequence[int]) -> None:
        """From here on the policy reads `ids` in place of all that was before."""
        self.segment_starts.append(len(self.token_ids))
        self.add_context(ids)

    def add_context(self, ids: Sequence[int]) -> None:
        self.token_ids.extend(ids)
        self.logprobs.frombytes(bytes(self.logprobs.itemsize * len(ids)))
        self.loss_mask.frombytes(bytes(len(ids)))

    def add_generation(self, generation: Generation) -> None:
        offset = len(self.token_ids)
        self.token_ids.extend(generation.token_ids)
        self.logprobs.extend(generation.logprobs)
        self.loss_mask.frombytes(b"\1" * len(generation.token_ids))
        self.weight_spans += [WeightSpan(s.version, s.start + offset, s.end + offset) for s in generation.weight_spans]
        self.answers.append((offset, len(self.token_ids)))
        if (new := generation.routed) is not None:
            start = new.start + self.segment_starts[-1]
            self.routed = [*(earlier for earlier in self.routed if earlier.start < start), RoutedTokens(start, new.experts)]

    def experts(self) -> Experts | ExpertIndex | None:
        """Of every token, `UNKNOWN` where the engine has not said; what it said last counts. None where it never did."""
        if not self.routed:
            return None
        stored = [(routed.start, routed.experts) for routed in self.routed if isinstance(routed.experts, StoredRows)]
        if stored:  # an engine always stores them, or never
            return ExpertIndex.build(len(self.token_ids), stored)
        told = [(routed.start, routed.experts) for routed in self.routed if not isinstance(routed.experts, StoredRows)]
        experts = np.full((len(self.token_ids), *told[0][1].shape[1:]), UNKNOWN, np.int16)
        for start, rows in told:
            experts[start : start + len(rows)] = rows
        return experts
