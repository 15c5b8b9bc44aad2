"""The environment of DeepSpeed's ranks, and what it is told."""

from pathlib import Path

import pytest

from gagar_mcore.config.load import load_recipe
from gagar_mcore.sft.zero_config import zero_config, zero_environment


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter's place, beside what was compiled for it, in mid-compilation."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    (tmp_path / "torch_extensions" / "op").mkdir(parents=True)
    (tmp_path / "torch_extensions" / "op" / "lock").touch()
    return tmp_path / "bin" / "python"


def test_the_lock_of_a_killed_compilation_is_removed(python: Path, tmp_path: Path) -> None:
    with zero_environment(python) as environment:
        assert environment["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "torch_extensions")
        assert environment["PATH"].startswith(f"{tmp_path / 'bin'}:")
        assert not (tmp_path / "torch_extensions" / "op" / "lock").exists()


def test_the_lock_of_ranks_that_run_stays(python: Path, tmp_path: Path) -> None:
    lock = tmp_path / "torch_extensions" / "op" / "lock"
    with zero_environment(python):
        lock.touch()
        with zero_environment(python):
            assert lock.exists()
        assert lock.exists()
    with zero_environment(python):
        assert not lock.exists()


def test_what_is_on_the_host_and_in_which_precision_follows_from_the_recipe() -> None:
    plain = zero_config(load_recipe("tiny-sft"))
    assert plain["zero_optimization"] == {"stage": 2} and not plain["bf16"]["enabled"]
    assert plain["optimizer"]["params"]["torch_adam"]
    changes = ["sft.deepspeed.stage=3", "sft.deepspeed.offload_weights=true", "trainer.offload_optimizer=true"]
    gpu = zero_config(
        load_recipe("tiny-sft", [*changes, "trainer.precision=bf16", "trainer.device=cuda", "trainer.optimizer.beta1=0.8"])
    )
    pinned = {"device": "cpu", "pin_memory": True}
    assert gpu["zero_optimization"] == {"stage": 3, "offload_optimizer": pinned, "offload_param": pinned}
    assert gpu["bf16"]["enabled"] and gpu["data_types"] == {"grad_accum_dtype": "fp32"}
    assert gpu["optimizer"]["params"]["betas"] == [0.8, 0.95] and not gpu["optimizer"]["params"]["torch_adam"]
