"""A checkpoint saved in any layout goes on in any other; it is visible when whole, and refused or skipped when it is not.

`make test` passes it between two ranks, `make test-layouts` between one, four and eight."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint
from checkpoint_ranks import BF16, CHAINS, REFUSALS, SAVED, Stage
from conftest import ENVIRONMENT
from layout_ranks import MODELS

from gagar_mcore.plan.host import host_on_rank
from gagar_mcore.records.layout import RunLayout

LONG = [chain for chain in CHAINS if chain.endswith("one to eight")]
PASSES = [
    pytest.param(
        chain, place, id=f"{chain}: {fields[place - 1]} to {fields[place]}", marks=[pytest.mark.layouts] * (chain in LONG)
    )
    for chain, fields in CHAINS.items()
    for place in range(1, len(fields))
]
pytestmark = pytest.mark.timeout(600)  # the first test starts the ranks


@pytest.fixture(scope="module")
def chains(request, tmp_path_factory):
    """What the ranks of the tests that are to run wrote."""
    root = tmp_path_factory.mktemp("checkpoints")
    tests = (item for item in request.session.items if item.module is request.module)
    long = any(test.get_closest_marker("layouts") for test in tests)
    wanted = LONG if long else [chain for chain in CHAINS if chain not in LONG]
    command = [
        sys.executable,
        str(Path(__file__).with_name("checkpoint_ranks.py")),
        str(root),
        *(c for c in CHAINS if c in wanted),
    ]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.fixture(scope="module")
def said(chains):
    return torch.load(chains / REFUSALS / "0.pt")


@cache
def saved_tensors(root: Path, place: int) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole, read without Megatron."""
    reader = torch_checkpoint.FileSystemReader(RunLayout(root / f"{place}").checkpoint(SAVED))
    described = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(d.size, dtype=d.properties.dtype) for name, d in described.items() if hasattr(d, "size")}
    torch_checkpoint.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@pytest.mark.parametrize(("chain", "place"), PASSES)
def test_what_another_layout_saved_loads_bit_by_bit_and_goes_on_the_same(chains, chain, place):
    root = chains / chain
    first, here = (saved_tensors(root, at) for at in (0, place))
    assert first.keys() == here.keys()
    assert [name for name in first if not torch.equal(first[name], here[name])] == []

    through, resumed = (torch.load(root / f"{at}.pt")["weights"] for at in (0, place))
    for name, expected in through.items():
        torch.testing.assert_close(resumed[name], expected, **tolerance(CHAINS[chain][place], CHAINS[chain][0]), msg=name)


@pytest.mark.parametrize(("chain", "place"), PASSES)
def test_to_load_it_takes_the_room_on_the_host_that_the_plan_counts(chains, chain, place):
    stage = Stage(chains / chain, place, CHAINS[chain][place])
    layout = stage.recipe.trainer.model_copy(update={"async_checkpoint": False})
    planned = host_on_rank(MODELS[stage.family], layout, stage=0).checkpoint
    assert torch.load(chains / chain / f"{place}.pt")["room to load"] == pytest.approx(planned, rel=0.01)


def test_random_states_come_back_in_the_layout_that_saved_them(chains):
    saved, same, other = (torch.load(chains / "qwen3_moe: bf16" / f"{place}.pt")["random"] for place in range(3))

    assert torch.equal(same, saved)
    assert not torch.equal(other, saved)


def tolerance(layout: str, of: str) -> dict[str, float]:
    """Of a weight after the third step: none in the same layout; else that of sums in another order, in bf16 two of its units
    and an update that went the other way."""
    if layout == of:
        return {"rtol": 0, "atol": 0}
    return {"rtol": 2**-7, "atol": 2e-3} if BF16 in layout else {"rtol": 0, "atol": 1e-5}


@pytest.mark.parametrize("chain", [c for c in CHAINS if c not in (REFUSALS, *LONG)])
def test_a_checkpoint_is_not_visible_while_it_is_written_and_training_goes_on_meanwhile(chains, chain):
    stages = [torch.load(chains / chain / f"{place}.pt") for place in range(len(CHAINS[chain]))]
    assert not any(stage["visible while training"] for stage in stages)


def test_a_checkpoint_holds_master_weights_and_moments_of_every_trained_parameter(chains):
    (chain,) = (c for c in CHAINS if c.endswith("bf16"))
    tensors = saved_tensors(chains / chain, 0)
    names = [name for name in tensors if not name.startswith("optimizer.") and "expert_bias" not in name]

    for name in names:
        master = tensors[f"optimizer.state.param.{name}"]
        assert tensors[name].dtype == torch.bfloat16
        assert torch.equal(master.bfloat16(), tensors[name])
        assert {tensors[f"optimizer.state.{moment}.{name}"].shape for moment in ("exp_avg", "exp_avg_sq")} == {master.shape}
    masters = [tensors[f"optimizer.state.param.{name}"] for name in names]
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("flip_a_bit", "__1_0.distcp: missing or damaged, does not match "),
        ("cut_a_file", "__0_0.distcp: missing or damaged, does not match "),
        ("lose_a_file", ".metadata: missing or damaged, does not match "),
        ("lose_the_manifest", "0-000004: not published"),
    ],
)
def test_a_damaged_checkpoint_is_left_for_the_one_before_and_the_log_says_why(said, damage, reason):
    skipped, taken = said[damage].splitlines()

    assert skipped.startswith("skipped a damaged checkpoint: ") and reason in skipped
    assert taken.endswith("checkpoints/0-000002")


def test_a_damaged_checkpoint_is_refused_where_the_batches_after_the_older_one_are_gone(said):
    assert "0-000004: damaged, and the batch of step 3" in said["batches gone"]


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(said):
    assert "0-000002: holds another model: family is mimo_v2 there, qwen3_moe here" in said["another model"]


def test_a_converted_checkpoint_is_refused_with_the_way_to_start_from_it(said):
    assert "0-000002: holds weights alone, as gagar convert writes them" in said["weights alone"]
    assert "gagar convert megatron-to-hf, then model.init=DIR" in said["weights alone"]


def test_a_checkpoint_of_another_version_is_refused(said):
    assert "0-000002: another version wrote it; begin the run anew in another output" in said["another version"]


def test_a_checkpoint_without_the_state_of_a_trained_parameter_is_refused(said):
    assert "has no optimizer.state." in said["frozen before"]
    assert "router.weight" in said["frozen before"]
    assert "trainer.freeze_router" in said["frozen before"]


def test_a_save_that_fails_on_one_rank_raises_on_all_and_leaves_nothing(said):
    for error in said["a rank cannot write"]:
        assert error.startswith("SaveFailed")
        assert "rank 1 could not write its part: [Errno 21] Is a directory" in error
    assert said["left"] == ["0-000002"]


def test_a_save_that_takes_too_long_is_named_with_its_mend(said):
    path, words = said["too slow"].removeprefix("TimeoutError: ").split(": not written within ")
    assert path.endswith("slow/checkpoints/0-000002")
    assert words.startswith("trainer.step_timeout_s=0.5; the storage is slow") and words.endswith("or raise the timeout")


def test_a_save_that_another_controller_overtook_is_not_published(said):
    assert said["fenced"][0].startswith("Fenced")
