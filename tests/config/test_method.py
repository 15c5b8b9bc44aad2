from dataclasses import fields

import pytest
from pydantic import ValidationError

from gagar_mcore.config.learning import MethodSection
from gagar_mcore.credit import BehaviourParams, CreditParams


def test_the_defaults_are_the_reported_constants():
    assert MethodSection().params() == CreditParams()


def test_every_constant_is_a_field():
    changes = dict(name="downweight_only", cap=None, min_valid=4, weights=(0.2,) * 5, t1_min=5, t3_approach=2, t3_minimality=1)
    changes |= dict(t3_side_effects=1, t1_top=0.9, t1_other=0.8, t2_best=0.7, t2_worst=0.6, t3=0.5)
    changes |= dict(length_penalty=True, length_pass_rate=0.1, length_percentile=40.0, length_weight=0.3, length_gamma=2.0)
    changes |= dict(group_size_correction=True)
    expected = CreditParams(method=changes["name"], **{k: v for k, v in changes.items() if k != "name"})
    assert MethodSection(**changes).params() == expected


def test_every_field_of_the_credit_step_is_one_of_the_recipe():
    own = {"name", "behaviour_shaping", "kappa", "behaviour_bounds"}
    assert set(MethodSection.model_fields) - own == {f.name for f in fields(CreditParams)} - {"method"}


def test_behaviour_shaping_is_off_by_default_and_has_the_reported_constants():
    assert MethodSection().behaviour() is None
    assert MethodSection(behaviour_shaping=True).behaviour() == BehaviourParams()
    section = MethodSection(behaviour_shaping=True, kappa=3.0, behaviour_bounds=(0.1, 4.0))
    assert section.behaviour() == BehaviourParams(3.0, 0.1, 4.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"cap": float("nan")},
        {"length_gamma": 1.0},
        {"length_percentile": float("inf")},
        {"length_weight": 2},
        {"kappa": float("nan")},
        {"behaviour_bounds": (2.0, 0.5)},
        {"behaviour_bounds": (0.0, 2.0)},
    ],
    ids=str,
)
def test_a_constant_out_of_range_is_refused(changes):
    with pytest.raises(ValidationError, match=next(iter(changes))):
        MethodSection(**changes)


@pytest.mark.parametrize("field", ["t1_top", "t2_worst", "t3"])
@pytest.mark.parametrize("value", [0, 1.1, float("nan"), "1", True])
def test_a_factor_lies_above_0_and_up_to_1(field, value):
    with pytest.raises(ValidationError, match=field):
        MethodSection(**{field: value})
