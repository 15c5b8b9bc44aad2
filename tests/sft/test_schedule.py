import pytest

from gagar_mcore.config.sft import SftSection
from gagar_mcore.sft.schedule import learning_rate

SECTION = SftSection(lr=1.0, warmup_steps=4, flat_share=0.4)


@pytest.mark.parametrize(("step", "rate"), [(1, 0.25), (4, 1.0), (40, 1.0), (70, 0.51), (100, 0.02)])
def test_warm_up_then_flat_then_cosine_to_two_percent(step, rate):
    assert learning_rate(SECTION, step, 100) == pytest.approx(rate)


def test_without_warm_up_and_all_flat_the_rate_is_constant():
    section = SftSection(lr=1.0, warmup_steps=0, flat_share=1.0)

    assert {learning_rate(section, step, 10) for step in range(1, 11)} == {1.0}
