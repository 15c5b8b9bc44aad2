import math

import pytest

from gagar_mcore.credit import CreditParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "GAGAR"),
        ("cap", 0.99),
        ("cap", math.nan),
        ("cap", math.inf),
        ("cap", True),
        ("cap", 10**400),
        ("min_valid", 1),
        ("min_valid", math.nan),
        ("min_valid", 2.0),
        ("weights", (0.3, 0.7)),
        ("weights", (math.nan, 0, 0, 0, 0)),
        ("t1_top", 0.0),
        ("t1_other", 1.1),
        ("t2_best", math.nan),
        ("t2_worst", -0.4),
        ("t3", 2.0),
        ("t3", math.inf),
        ("t1_min", 6),
        ("t3_approach", math.nan),
        ("t3_minimality", 0),
        ("t3_side_effects", 2.5),
        ("length_penalty", 1),
        ("length_pass_rate", math.nan),
        ("length_percentile", math.inf),
        ("length_percentile", 101),
        ("length_weight", -0.2),
        ("length_gamma", 1.0),
        ("length_gamma", math.inf),
        ("group_size_correction", None),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        CreditParams(**{field: value})


def test_an_uncapped_lambda_is_written_none():
    assert CreditParams(cap=None).cap is None
