"""Credit: one advantage for each valid trajectory of a group. Pure functions, standard library only."""

from gagar_mcore.credit.aggregation import Aggregation, aggregation_weights
from gagar_mcore.credit.compute import FactorVerdict, Outcome, compute_credit
from gagar_mcore.credit.params import CreditParams
from gagar_mcore.credit.verdict import VerdictError, check_verdict

__all__ = [
    "Aggregation",
    "CreditParams",
    "FactorVerdict",
    "Outcome",
    "VerdictError",
    "aggregation_weights",
    "check_verdict",
    "compute_credit",
]
