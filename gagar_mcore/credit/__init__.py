"""Credit: one advantage for each valid trajectory of a group. Pure functions, standard library only."""

from gagar_mcore.credit.aggregation import Aggregation, aggregation_weights
from gagar_mcore.credit.behaviour import BehaviourParams, BehaviourScale, BehaviourSums, behaviour_scale, behaviour_sums
from gagar_mcore.credit.compute import compute_credit
from gagar_mcore.credit.explain import explain
from gagar_mcore.credit.explanation import Explanation, Step
from gagar_mcore.credit.outcome import Attempt, Outcome
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.credit.reward_space import reward_space
from gagar_mcore.credit.verdict import FactorVerdict, VerdictError, check_verdict

__all__ = [
    "Aggregation",
    "Attempt",
    "BehaviourParams",
    "BehaviourScale",
    "BehaviourSums",
    "CreditParams",
    "Explanation",
    "FactorVerdict",
    "Outcome",
    "Step",
    "VerdictError",
    "aggregation_weights",
    "behaviour_scale",
    "behaviour_sums",
    "check_verdict",
    "compute_credit",
    "explain",
    "reward_space",
]
