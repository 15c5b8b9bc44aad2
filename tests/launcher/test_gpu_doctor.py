"""`gagar doctor --gpu`: its program runs here on the CPU, where Megatron's modules are compared in fp32 and bf16."""

from pathlib import Path

import pytest
import torch

from gagar_mcore.launcher import gpu_doctor
from gagar_mcore.launcher.gpu import Gpu, Gpus, gpu_findings, look_for_gpus

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def test_the_checks_hold_on_a_cpu(tmp_path: Path) -> None:
    found = gpu_doctor.run_checks("cpu", tmp_path / "checks.log")
    assert [check.name for check in found] == ["fused step", "model, Megatron's modules", "two training steps"]
    assert all(check.ok for check in found), (found, (tmp_path / "checks.log").read_text()[-3000:])


@needs_no_gpu
def test_a_program_that_does_not_come_to_its_end_is_a_finding(tmp_path: Path) -> None:
    [found] = gpu_doctor.run_checks("cuda", tmp_path / "checks.log")
    assert (found.ok, found.detail) == (False, "the process that computes ended with exit code 1")
    assert "trainer.device: cuda, but torch sees no GPU here" in (tmp_path / "checks.log").read_text()


@needs_no_gpu
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert not gpu_doctor.print_gpu_diagnosis()
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gagar: no GPU to check: torch") and len(output.err.splitlines()) == 1


def test_what_pytorch_sees_is_asked_in_a_child() -> None:
    gpus = look_for_gpus()
    assert (gpus.version, gpus.cuda, len(gpus.devices)) == (torch.__version__, torch.version.cuda, torch.cuda.device_count())


def test_too_few_gpus_are_a_shortage_with_its_mend() -> None:
    card = Gpu("H200", (9, 0), 100 << 30, 141 << 30)
    assert "built without CUDA; install" in str(Gpus("2.13", None, ()).shortage(1))
    assert "sees no GPU; install or load the NVIDIA driver" in str(Gpus("2.13", "13.0", ()).shortage(1))
    assert "sees 1 GPUs and 2 are needed; choose a smaller layout" in str(Gpus("2.13", "13.0", (card,)).shortage(2))
    assert Gpus("2.13", "13.0", (card, card)).shortage(2) is None


def test_a_full_or_an_old_card_is_found() -> None:
    full = gpu_findings(Gpus("2.13", "13.0", (Gpu("A100", (8, 0), 1 << 30, 80 << 30),)))
    by_name = {check.name: check for check in full}
    assert not by_name["NVIDIA GPU"].ok and "1024 of 81920 MB free" in by_name["NVIDIA GPU"].detail
    assert not by_name["CUDA fused step"].ok and "not for sm_80" in by_name["CUDA fused step"].detail
    assert not by_name["CUDA fused step"].needed
