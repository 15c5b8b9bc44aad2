"""Credit over the rows of another stack's batch: grouped, judged by their notes, one advantage a row."""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gagar_mcore.credit import CreditParams, FactorVerdict, VerdictError, compute_credit
from gagar_mcore.integrations.jsonl_schema import parse_verdict
from gagar_mcore.integrations.rows import PREFIX, Notes, Row
from gagar_mcore.records.types import Credit, Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowCredit:
    """`advantages` in the order of the rows, 0 in dropped groups and for invalid trajectories; `groups` as they first appear."""

    advantages: list[float]
    groups: dict[Hashable, Credit]
    invalid: int  # trajectories

    def metrics(self) -> dict[str, float]:
        """Groups, how many were kept, dropped and fallen back by reason, how often the cap was reached, and the mean lambda
        where a verdict was used."""
        counts = Counter({"groups": len(self.groups), "kept": 0, "capped": 0, "invalid_trajectories": self.invalid})
        for credit in self.groups.values():
            counts["kept"] += credit.kept
            counts["capped"] += credit.capped
            counts.update([f"dropped/{credit.dropped}"] if credit.dropped else [])
            counts.update([f"fallback/{credit.fallback.partition(':')[0]}"] if credit.fallback else [])
        found = {f"gagar/{name}": float(count) for name, count in counts.items()}
        lambdas = [credit.lam for credit in self.groups.values() if credit.factors]
        return {**found, "gagar/lambda_mean": sum(lambdas) / len(lambdas)} if lambdas else found

    def log(self) -> None:
        """The metrics in one line, as a warning with an example where a verdict was missing or could not be used."""
        text = ", ".join(f"{name.removeprefix('gagar/')} {value:.4g}" for name, value in self.metrics().items())
        fallen = next((f"; group {group!r}: {c.fallback}" for group, c in self.groups.items() if c.fallback), "")
        logger.log(logging.WARNING if fallen else logging.INFO, "gagar: %s%s", text, fallen)


def credit_rows(rows: Sequence[Row], params: CreditParams) -> RowCredit:
    """Raises ValueError as `compute_credit` does, naming the group, and for segments of one trajectory that differ."""
    groups: dict[Hashable, dict[str, Row]] = {}
    for row in rows:
        if groups.setdefault(row.group, {}).setdefault(row.id, row) != row:
            raise ValueError(f"group {row.group!r}, trajectory {row.id!r}: its segments differ in reward or in {PREFIX}* fields")
    credits = {group: _credit_group(group, list(members.values()), params) for group, members in groups.items()}
    advantages = [credits[row.group].advantages.get(row.id, 0.0) for row in rows]
    invalid = sum(not row.valid for members in groups.values() for row in members.values())
    return RowCredit(advantages, credits, invalid)


def _credit_group(group: Hashable, members: Sequence[Row], params: CreditParams) -> Credit:
    fallback = next((row.notes.fallback for row in members if row.notes.fallback), None)
    verdict = None
    try:
        verdict = _verdict(members)
    except VerdictError as error:
        fallback = fallback or f"invalid: {error}"
    try:
        return compute_credit(members, verdict, params, fallback=fallback)
    except ValueError as error:
        raise ValueError(f"group {group!r}: {error}") from error


def _verdict(members: Iterable[Row]) -> Verdict | FactorVerdict | None:
    """The verdict that the notes of the passing rows amount to, None where they say nothing. Raises VerdictError."""
    passing = {row.id: row.notes for row in members if row.valid and row.reward > 0}
    hacks = [id for id, notes in passing.items() if _is_hack(id, notes)]
    factors = {id: notes.factor for id, notes in passing.items() if notes.factor is not None}
    grades = {id: notes.grade for id, notes in passing.items() if notes.grade is not None}
    if not (hacks or factors or grades):
        return None
    judged = {"grades": grades} if grades else {"factors": factors}
    return parse_verdict({"factors": factors or None, "hacks": hacks, **judged})


def _is_hack(id: str, notes: Notes) -> bool:
    if notes.hack is not None and not isinstance(notes.hack, bool):
        raise VerdictError(f"hack: must be true or false, got {notes.hack!r} for {id!r}")
    return bool(notes.hack)
