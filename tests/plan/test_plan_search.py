import pytest

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.gpus import GPUS, find_gpu
from gagar_mcore.plan.search import cheapest_fit, search_layouts
from gagar_mcore.plan.workload import Workload
from gagar_mcore.trainer.layout import check_layout

FLASH = preset("mimo-v2-flash")
SIZES = ((127, "GPU"), (1600, "node"))
START = TrainerSection(tp=1, ep=1, precision="bf16", tokens_per_microbatch=16384)


@pytest.fixture(scope="module")
def found():
    return search_layouts(FLASH, START, Workload(128, 32768), GPUS["h200"], 64)


def test_every_layout_that_fits_is_one_that_the_trainer_takes(found):
    assert found.feasible
    for candidate in found.feasible:
        check_layout(candidate.layout, FLASH)
        assert candidate.layout.world_size == 64
        assert candidate.memory.total <= GPUS["h200"].usable_memory
        assert candidate.layout.tp <= 4  # key-value heads


def test_the_cheapest_comes_first(found):
    costs = [candidate.cost.total for candidate in found.feasible]
    assert costs == sorted(costs)


def test_the_published_layout_is_among_them(found):
    sizes = {(c.layout.tp, c.layout.pp, c.layout.cp, c.layout.ep, c.layout.etp) for c in found.feasible}
    assert (4, 4, 2, 16, 1) in sizes


def test_the_others_are_counted_by_reason(found):
    reasons = " ".join(found.refused)
    assert "trainer.tp: 8 does not divide the 4 key-value heads" in reasons
    gpu, host = (f"memory: more than the {gigabytes} GB of a {what} that are free for it" for gigabytes, what in SIZES)
    assert found.refused[f"host {host}"] > 0 and found.refused[f"{gpu}; offloaded, host {host}"] > 0
    assert all(count > 0 for count in found.refused.values())


def test_the_host_of_a_node_can_be_too_small():
    few = search_layouts(FLASH, START, Workload(128, 32768), GPUS["h200"], 32)
    reason = "host memory: more than the 1600 GB of a node that are free for it"
    assert not few.feasible and few.refused[reason] > 0
    assert search_layouts(FLASH, START, Workload(128, 32768), find_gpu("h200", 4000), 32).feasible


def test_memory_that_is_there_buys_less_recomputation():
    layout = TrainerSection(tp=1, ep=1, dp=8, precision="bf16", tokens_per_microbatch=65536)
    found = [cheapest_fit(preset("mini"), layout, Workload(64, 8192), GPUS[gpu]).layout for gpu in ("h100", "h200", "b200")]
    assert [layout.recompute for layout in found] == ["full", "none", "none"]


def test_a_step_of_few_sequences_bounds_data_parallelism():
    search = search_layouts(preset("mini"), START, Workload(4, 8192), GPUS["h200"], 8)
    assert search.refused["trainer.dp: more ranks than the 4 sequences of a step"] > 0
    assert max(candidate.layout.dp for candidate in search.feasible) == 4
