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
        ("min_valid", 1),
        ("weights", (0.3, 0.7)),
        ("weights", (math.nan, 0, 0, 0, 0)),
        ("t1_top", 0.0),
        ("t1_other", 1.1),
        ("t2_best", math.nan),
        ("t2_worst", -0.4),
        ("t3", 2.0),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        CreditParams(**{field: value})


def test_an_uncapped_lambda_is_written_none():
    assert CreditParams(cap=None).cap is None
