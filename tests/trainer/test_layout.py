import subprocess
import sys

import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.trainer.layout import check_layout


@pytest.mark.parametrize(
    "layout", [{"tp": 1, "ep": 1}, {"tp": 2, "ep": 2}, {"tp": 2, "ep": 4, "dp": 2}, {"tp": 1, "ep": 2, "dp": 2}]
)
def test_layouts_that_fit(layout):
    check_layout(TrainerSection(**layout), preset("tiny"))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"tp": 3, "ep": 1}, r"^trainer\.tp: 3 does not divide the 4 attention heads"),
        ({"tp": 4, "ep": 1}, r"^trainer\.tp: 4 does not divide the 2 key-value heads of global layers"),
        ({"tp": 1, "ep": 3, "dp": 3}, r"^trainer\.ep: 3 does not divide the 8 experts"),
        ({"tp": 2, "ep": 4}, r"^trainer\.ep: 4 does not divide the 2 ranks"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_in_one_line_with_its_field(layout, message):
    with pytest.raises(ValueError, match=message) as error:
        check_layout(TrainerSection(**layout), preset("tiny"))
    assert "\n" not in str(error.value)


def test_the_check_needs_no_heavy_import():
    code = "import sys, gagar_mcore.trainer.layout; sys.exit(any(m in sys.modules for m in ('torch', 'megatron')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
