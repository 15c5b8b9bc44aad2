"""Explaining the advantage of one trajectory."""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from gagar_mcore.credit.compute import to_float
from gagar_mcore.credit.explanation import OPERATIONS, Explanation, Operation, Step
from gagar_mcore.credit.ledger import AnyVerdict, Ledger, Stages, open_ledger
from gagar_mcore.credit.outcome import Outcome
from gagar_mcore.credit.params import CreditParams, Method

Operations = Iterator[tuple[str, Operation, Fraction, str]]


def explain(
    outcomes: Iterable[Outcome],
    verdict: AnyVerdict | None,
    params: CreditParams,
    trajectory_id: str,
    fallback: str | None = None,
) -> Explanation:
    """The way of one trajectory of a group through `compute_credit`, which takes the same arguments.
    Raises its errors, and KeyError for an id that the group does not hold."""
    outcomes = list(outcomes)
    ledger = open_ledger(outcomes, verdict, params, fallback)
    member = {outcome.id: outcome for outcome in outcomes}[trajectory_id]
    stages = ledger.stages
    moved = stages.redistribution if stages else None
    advantage = stages.advantages.get(trajectory_id) if stages else None
    return Explanation(
        trajectory_id,
        params.method,
        len(ledger.rewards),
        sum(reward > 0 for reward in ledger.zeroed.values()),
        ledger.dropped,
        ledger.fallback,
        trajectory_id in ledger.hacks,
        stages.tiers.get(trajectory_id) if stages else None,
        stages.factors.get(trajectory_id) if stages else None,
        to_float(moved.lam) if moved else 1.0,
        to_float(moved.bounded) if moved else 1.0,
        moved.capped if moved else False,
        tuple(_replay(_operations(ledger, trajectory_id))) if member.valid else (),
        None if advantage is None else float(advantage),
        _remark(ledger, member, params.method),
    )


def _replay(operations: Operations) -> Iterator[Step]:
    """The steps of `operations`, their values carried on without rounding."""
    value = Fraction()
    for name, operation, operand, words in operations:
        value = OPERATIONS[operation](value, operand)
        yield Step(name, operation, to_float(operand), float(value), words)


def _operations(ledger: Ledger, id: str) -> Operations:
    reward = ledger.rewards[id]
    yield "reward", "is", reward, f"reward {_short(reward)} from the tests"
    if id in ledger.hacks:
        yield "hack", "is", Fraction(), "set to 0 as a confirmed hack"
    if ledger.stages is not None:
        yield from _advantage(ledger.stages, id)


def _advantage(stages: Stages, id: str) -> Operations:
    moved, penalty = stages.redistribution, stages.penalties.get(id)
    if penalty is not None:
        yield "length penalty", "minus", penalty, f"minus a length penalty of {_short(penalty)}"
    number = len(stages.outcome)
    yield "mean", "minus", stages.mean, f"minus the mean {_short(stages.mean)} of {number} valid trajectories"
    if id in moved.scaled:
        yield "redistribution", "times", moved.scaled[id], _redistribution(stages, id)
    if moved.capped:
        yield "re-centring", "plus", -moved.centre, f"plus {_short(-moved.centre)} to re-centre the group, as the cap bit"
    if stages.correction != 1:
        yield "group size", "times", stages.correction, f"times {number}/{number - 1} for the group size"


def _redistribution(stages: Stages, id: str) -> str:
    moved, tier = stages.redistribution, stages.tiers.get(id)
    where = f" (tier {tier})" if tier else ""
    words = f"times discount factor {_short(stages.factors[id])}{where}"
    if moved.lam == 1:
        return words
    capped = f" (capped, {_short(moved.lam)} before)" if moved.capped else ""
    return f"{words} and lambda {_short(moved.bounded)}{capped}"


def _remark(ledger: Ledger, member: Outcome, method: Method) -> str | None:
    if not member.valid:
        reason = getattr(member, "invalid_reason", None)
        named = f" ({reason.replace('_', ' ')})" if reason else ""
        return f"it is invalid{named} and left its group before any statistic"
    stages = ledger.stages
    if stages is None:
        return f"its group was dropped, {_dropped(ledger)}"
    if ledger.fallback is not None:
        return f"the outcome advantage stands, as no verdict was used ({ledger.fallback})"
    if method == "grpo":
        return "method grpo redistributes nothing"
    if member.id in stages.redistribution.scaled:
        return None
    why = "it fails" if ledger.zeroed[member.id] == 0 else "its reward is not above the mean"
    return f"not redistributed, as {why}"


def _dropped(ledger: Ledger) -> str:
    number = len(ledger.rewards)
    words = {
        "too_few_valid": f"too few of its trajectories are valid ({number})",
        "all_pass": f"all {number} valid trajectories pass",
        "all_fail": f"all {number} valid trajectories fail",
        "all_hacked": "every pass in it is a confirmed hack",
    }
    return words[ledger.dropped or "too_few_valid"]


def _short(value: Fraction | float) -> str:
    return f"{to_float(Fraction(value)):.6g}"
