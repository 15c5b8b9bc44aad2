import pytest
from pydantic import ValidationError

from gagar_mcore.config.learning import MethodSection
from gagar_mcore.credit import CreditParams


def test_the_defaults_are_the_reported_constants():
    assert MethodSection().params() == CreditParams()


def test_every_constant_is_a_field():
    changes = dict(name="downweight_only", cap=None, min_valid=4, weights=(0.2,) * 5, t1_min=5, t3_approach=2, t3_minimality=1)
    changes |= dict(t3_side_effects=1, t1_top=0.9, t1_other=0.8, t2_best=0.7, t2_worst=0.6, t3=0.5)
    expected = CreditParams(method=changes["name"], **{k: v for k, v in changes.items() if k != "name"})
    assert MethodSection(**changes).params() == expected


@pytest.mark.parametrize("field", ["t1_top", "t2_worst", "t3"])
@pytest.mark.parametrize("value", [0, 1.1, float("nan"), "1", True])
def test_a_factor_lies_above_0_and_up_to_1(field, value):
    with pytest.raises(ValidationError, match=field):
        MethodSection(**{field: value})
