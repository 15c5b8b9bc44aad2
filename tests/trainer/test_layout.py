import subprocess
import sys

import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.trainer.layout import check_layout, stage_layers


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 1, "ep": 1},
        {"tp": 2, "ep": 2},
        {"tp": 2, "ep": 4, "dp": 2},
        {"tp": 1, "ep": 2, "dp": 2},
        {"tp": 2, "ep": 1, "etp": 2},
        {"tp": 1, "ep": 2, "etp": 2, "dp": 4},
        {"tp": 1, "ep": 1, "pp": 4},
        {"tp": 2, "ep": 2, "pp": 2, "vpp": 2},
    ],
)
def test_layouts_that_fit(layout):
    check_layout(TrainerSection(**layout), preset("tiny"))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"tp": 3, "ep": 1}, r"^trainer\.tp: 3 does not divide the 4 attention heads"),
        ({"tp": 4, "ep": 1}, r"^trainer\.tp: 4 does not divide the 2 key-value heads of global layers"),
        ({"tp": 1, "ep": 3, "dp": 3}, r"^trainer\.ep: 3 does not divide the 8 experts"),
        ({"tp": 2, "ep": 4}, r"^trainer\.ep: 4 does not divide the 2 ranks of tp \* cp \* dp"),
        ({"tp": 2, "ep": 4, "pp": 2}, r"^trainer\.ep: 4 does not divide the 2 ranks of tp \* cp \* dp"),
        ({"tp": 2, "ep": 2, "etp": 2}, r"^trainer\.etp: 2 does not divide the 1 ranks of tp \* cp \* dp / ep"),
        ({"tp": 1, "ep": 1, "etp": 3, "dp": 3}, r"^trainer\.etp: 3 does not divide the 64 feed-forward rows of an expert"),
        ({"tp": 1, "ep": 1, "vpp": 2}, r"^trainer\.vpp: 2 chunks a stage need a pipeline"),
        ({"tp": 1, "ep": 1, "pp": 5}, r"^trainer\.pp: 5 stages leave one without any of the 4 layers"),
        ({"tp": 1, "ep": 1, "pp": 10**9}, r"^trainer\.pp: 1000000000 stages leave one without any of the 4 layers"),
        ({"tp": 1, "ep": 1, "mtp": "train"}, r"^trainer\.mtp: train, but the model has no layers of multi-token prediction"),
        ({"tp": 1, "ep": 1, "pp": 2, "vpp": 4}, r"^trainer\.vpp: 2 stages of 4 chunks leave one without any of the 4 layers"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_in_one_line_with_its_field(layout, message):
    with pytest.raises(ValueError, match=message) as error:
        check_layout(TrainerSection(**layout), preset("tiny"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        (70, 8, 1, (8, 9, 9, 9, 9, 9, 9, 8)),
        (48, 4, 1, (12, 12, 12, 12)),
        (4, 2, 1, (2, 2)),
        (4, 2, 2, (1, 1, 1, 1)),
        (4, 4, 1, (1, 1, 1, 1)),
        (70, 4, 2, (8, 9, 9, 9, 9, 9, 9, 8)),
        (47, 4, 1, (11, 12, 12, 12)),
    ],
)
def test_layers_of_each_part_of_the_pipeline(layers, pp, vpp, expected):
    assert stage_layers(layers, pp, vpp) == expected
    assert sum(expected) == layers


def test_the_check_needs_no_heavy_import():
    code = "import sys, gagar_mcore.trainer.layout; sys.exit(any(m in sys.modules for m in ('torch', 'megatron')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
