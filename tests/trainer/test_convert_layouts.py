"""Checkpoints through four ranks, experts cut or spread over pipeline stages, and one that interleaved stages have trained."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENVIRONMENT, RECIPE, TORCHRUN, make_run, publish_batches
from stored import read_stored
from test_convert import MODELS, assert_same_bits, there_and_back, write_bf16

from gagar_mcore.config.conversion import Conversion, Layout
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_manifest

sys.path.append(str(Path(__file__).parent.with_name("weights")))
from handmade import Handmade, Maker

pytestmark = [pytest.mark.timeout(300), pytest.mark.layouts]  # the first test starts the ranks
CUT, STAGED = Layout(tp=2, ep=2, etp=2), Layout(pp=2, ep=2)
EXACT = {"precision": "fp32"}
STEPS = 2


@pytest.fixture(scope="module")
def packed() -> Handmade:
    return Maker(2, 4, fused=True, mxfp4=True).make()


@pytest.fixture(scope="module")
def root(tmp_path_factory, packed, interleaved) -> Path:
    """After all conversions: `NAME` is what was published, `NAME-back` what came back, `run` what the run's checkpoint gave."""
    root = tmp_path_factory.mktemp("convert")
    for name, model in MODELS.items():
        write_bf16(root / name, model)
    packed.save(root / "packed")
    jobs = [
        *there_and_back(root, "mimo", CUT, STAGED),
        *there_and_back(root, "qwen", STAGED, CUT),
        *there_and_back(root, "packed", *(of.model_copy(update=EXACT) for of in (STAGED, CUT)), format="mxfp4", naming="fused"),
        Conversion(
            direction="megatron-to-hf",
            source=interleaved.checkpoint(STEPS),
            target=root / "run",
            companions=interleaved.weights(STEPS),
            layout=STAGED.model_copy(update=EXACT),
            format="fp32",
        ),
    ]
    (root / "jobs.jsonl").write_text("\n".join(job.model_dump_json() for job in jobs))
    on_ranks(4, str(Path(__file__).with_name("convert_ranks.py")), str(root))
    return root


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory) -> RunLayout:
    """A run whose two stages have two chunks each, trained to its end."""
    layout = make_run(tmp_path_factory.mktemp("runs") / "run")
    recipe = RECIPE.replace("trainer: {", "trainer: {tp: 1, ep: 1, pp: 2, vpp: 2, ")
    layout.recipe.write_text(recipe.replace("train: {steps: 4, ", f"train: {{steps: {STEPS}, "))
    publish_batches(layout, *range(1, STEPS + 1))
    on_ranks(2, "-m", "gagar_mcore.trainer.main", str(layout.root), "--epoch", "1")
    return layout


def on_ranks(count: int, *command: str) -> None:
    done = subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={count}", *command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", MODELS)
def test_bf16_comes_back_to_the_bit_through_cut_experts_and_stages(root, name):
    assert_same_bits(read_stored(root / f"{name}-back"), read_stored(root / name))


def test_mxfp4_comes_back_to_the_bit(root, packed):
    assert_same_bits(read_stored(root / "packed-back"), packed.stored)


def test_a_checkpoint_of_interleaved_stages_gives_the_weights_that_the_run_published(root, interleaved):
    assert read_manifest(interleaved.checkpoint(STEPS), "checkpoint").meta["layout"]["vpp"] == 2
    assert_same_bits(read_stored(root / "run"), read_stored(interleaved.weights(STEPS)))
