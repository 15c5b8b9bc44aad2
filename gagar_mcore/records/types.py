"""The records of one step: every arrow of the data flow is one of these frozen values."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from gagar_mcore.records.packed import Float32, Int32, Uint8, pack

InvalidReason = Literal["sandbox_lost", "verifier_failed", "engine_failed", "agent_failed", "stale"]
EndReason = Literal["finished", "max_turns", "max_tokens", "max_context", "max_bytes", "agent_failed", "deadline", "invalid"]
DropReason = Literal["all_pass", "all_fail", "too_few_valid", "all_hacked"]
TestStatus = Literal["passed", "failed", "error", "missing"]


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Tokens `[start, end)` of a trajectory were generated with weights `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of the policy and what it saw in return."""

    index: int
    action: str  # the generated text, stop token left out
    tool: str  # name of the parsed tool, "" where the text was no valid call
    observation: str  # "" after the closing action
    ok: bool  # False where the call was malformed or the tool refused it
    finish_reason: Literal["stop", "length", "abort"]
    generated_tokens: int
    seconds: float
    engine_seconds: float = 0.0  # of `seconds`, what the engine took; 0 where that was not told apart


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of the task's own tests on the patch, in a fresh sandbox. `reward` is 1.0 exactly when every listed test passed, by
    a report that can be believed. `suspicion`: why it was doubted."""

    reward: float
    tests: dict[str, TestStatus]
    output: str  # last characters of what the test run printed
    seconds: float
    infrastructure_error: str | None = None  # set: the trajectory is invalid, never failed
    suspicion: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long a trajectory is. Input tokens are those that the policy read and did not generate (prompt and observations), each
    counted once a segment, however many turns read it again; output tokens are those that it generated."""

    turns: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One session of the policy on one task, token-exact, with its verification.

    token_ids, logprobs, loss_mask: `[num_tokens]`, kept as arrays, which equal no list; logprobs are those of the sampling
    distribution, 0.0 where `loss_mask` is 0. `loss_mask` is 1 on generated tokens only (stop tokens included where the model
    generated them).
    `segment_starts`: where its segments begin, rising from 0. A segment is a token sequence of its own, trained without sight of
    the others: the policy's context was made anew there. Credit, weight spans and turns are the whole trajectory's.
    `patch` is text with surrogate escapes where the policy wrote bytes that are not UTF-8. `experts` is the size and sha256 of
    the file that says which experts the tokens passed, where the engine recorded them (see `records/experts.py`).
    """

    id: str
    group_id: str
    task_id: str
    member: int
    token_ids: Int32
    logprobs: Float32
    loss_mask: Uint8
    weight_spans: list[WeightSpan]
    turns: list[Turn]
    patch: str
    end_reason: EndReason
    reward: float
    valid: bool
    invalid_reason: InvalidReason | None = None
    invalid_detail: str = ""
    verification: Verification | None = None
    seconds: float = 0.0
    experts: tuple[int, str] | None = None
    segment_starts: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        for name, code in (("token_ids", "i"), ("logprobs", "f"), ("loss_mask", "B")):
            object.__setattr__(self, name, pack(code, getattr(self, name)))

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The tokens `[start, end)` of each segment, in order."""
        return list(pairwise([*self.segment_starts, len(self.token_ids)]))

    @property
    def generated_tokens(self) -> int:
        return bytes(self.loss_mask).count(1)

    @property
    def lengths(self) -> Lengths:
        return Lengths(len(self.turns), len(self.token_ids) - self.generated_tokens, self.generated_tokens)

    @property
    def passed(self) -> bool:
        return self.valid and self.reward > 0


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of one passing trajectory: five criteria (1-5, 5 best), its rank (1 best, ties equal) and flags."""

    approach: int
    precision: int
    minimality: int
    side_effects: int
    consistency: int
    rank: int | None = None
    rewrite: bool = False
    workaround: bool = False
    severe_process: bool = False
    regression: bool = False
    citations: list[str] = field(default_factory=list)  # one for each negative judgement: "patch:FILE:LINE", "turn:N", "test:ID"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grader's answer for one group: one grade for each passing trajectory, and the ids of confirmed hacks."""

    grader: str
    grades: dict[str, Grade]
    hacks: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages of one group and how they came about. `advantages` holds the valid trajectories only."""

    method: str
    kept: bool
    dropped: DropReason | None
    fallback: str | None  # reason why the verdict was not used, None where it was
    lam: float  # lambda after the cap
    capped: bool
    advantages: dict[str, float]
    tiers: dict[str, int] = field(default_factory=dict)  # passing id -> 1, 2, 3
    factors: dict[str, float] = field(default_factory=dict)  # passing id -> discount factor
    penalties: dict[str, float] = field(default_factory=dict)  # passing id -> what the length penalty took from its reward


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one task in one step, by id, with verdict and credit."""

    id: str
    step: int
    task_id: str
    trajectory_ids: list[str]
    verdict: Verdict | None
    credit: Credit
