import subprocess
import sys
from dataclasses import replace

import pytest

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.activations import LOGITS_CHUNK
from gagar_mcore.plan.fit import check_fit
from gagar_mcore.plan.machine import gpu_memory, host_memory


def test_a_plan_loads_neither_torch_nor_megatron():
    code = "import sys, gagar_mcore.plan.command, gagar_mcore.plan.fit; sys.exit(bool({'torch', 'megatron'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_chunk_of_logits_is_that_of_the_operator():
    from gagar_mcore.ops.logprob import GPU_CHUNK

    assert LOGITS_CHUNK == GPU_CHUNK


def test_the_memory_of_a_gpu_is_read_where_its_tool_is(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi: no GPU is at hand."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81559\necho 143771\necho '[N/A]'\n")
    tool.chmod(0o755)
    assert gpu_memory() == 143771 << 20


@pytest.mark.parametrize("name", ["tiny", "tiny-sft"])
def test_the_tiny_recipes_fit_everywhere(name):
    check_fit(load_recipe(name), preset("tiny"))
    for gpu in ("h100", "h200", "b200"):
        check_fit(load_recipe(name, [f"cluster.gpu={gpu}"]), preset("tiny"))


def test_on_a_cpu_what_all_ranks_hold_counts():
    """fp32: 16 bytes a parameter on one rank and 16 for its checkpoint; data-parallel ranks hold 8 and 16 more each, and all of
    them one of the two embeddings on its way to a file."""
    one, eight = (load_recipe("tiny", ["trainer.tp=1", "trainer.ep=1", f"trainer.dp={dp}"]) for dp in (1, 8))
    vocabulary = int(host_memory() / ((2 * 32 + 4) * 128))  # what one rank holds is as large as the machine's memory
    check_fit(one, replace(preset("tiny"), vocab_size=int(0.9 * vocabulary)))
    for recipe, share in ((one, 1.1), (eight, 0.3)):
        with pytest.raises(RecipeError, match="cannot fit"):
            check_fit(recipe, replace(preset("tiny"), vocab_size=int(share * vocabulary)))


def test_a_node_whose_host_is_too_small_is_refused():
    recipe = load_recipe("pro-1t")
    check_fit(recipe, preset("mimo-v2.6-pro"))
    small = load_recipe("pro-1t", ["cluster.node_memory_gb=500"])
    with pytest.raises(
        RecipeError, match=r"cannot fit: 8 ranks of a node take \d+\.\d GB of its host's memory .*node_memory_gb.* 500\.0 GB"
    ):
        check_fit(small, preset("mimo-v2.6-pro"))
