"""DeepSpeed as a recipe wants it: environment, process group and configuration of a rank."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.recipe import Recipe

SEVERAL = 2  # DeepSpeed keeps sums of gradients where it expects several micro-batches; the caller says which is a step's last


@contextmanager
def zero_environment(python: Path) -> Iterator[dict[str, str]]:
    """What ranks of the interpreter `python` are started with, while they run. DeepSpeed looks for ninja on the path, and
    compiles what it needs in the interpreter's environment, or where TORCH_EXTENSIONS_DIR says. A compilation that was killed
    leaves a lock there, for which PyTorch waits without end: where no other ranks run, it is removed."""
    programs = python.absolute().parent
    compiled = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or programs.parent / "torch_extensions")
    compiled.mkdir(parents=True, exist_ok=True)
    with open(compiled / "users.lock", "a") as users:
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for lock in compiled.glob("*/lock"):
                lock.unlink()
        fcntl.flock(users, fcntl.LOCK_SH)
        yield {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TORCH_EXTENSIONS_DIR": str(compiled)}


def join(trainer: TrainerSection) -> None:
    """Enter the process group that torchrun describes. A collective waits at most `step_timeout_s`, then the rank fails. Raises
    RuntimeError where there is no GPU for `device: cuda`."""
    if trainer.device == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}

    import deepspeed
    import torch

    # Of inference alone, and yet compiled at the start, which fails below a folder whose name has a space.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(trainer.threads)
    if trainer.device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("trainer.device: cuda, but torch sees no GPU here; gagar doctor says why")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if trainer.device == "cuda" else "gloo"
    deepspeed.init_distributed(backend, timeout=timedelta(seconds=trainer.step_timeout_s), verbose=False)


def zero_config(recipe: Recipe) -> dict[str, Any]:
    """AdamW in fp32 on shards of fp32 master weights, whatever the precision of the passes."""
    trainer, section = recipe.trainer, recipe.sft.deepspeed
    on_host = {"device": "cpu", "pin_memory": trainer.device == "cuda"}
    optimizer = trainer.optimizer
    adam = {"lr": recipe.sft.lr, "betas": [optimizer.beta1, optimizer.beta2], "eps": optimizer.eps}
    compiled = trainer.offload_optimizer and trainer.device == "cuda"  # DeepSpeed's Adam takes minutes to make
    zero: dict[str, Any] = {"stage": section.stage}
    if trainer.offload_optimizer:
        zero["offload_optimizer"] = on_host
    if section.offload_weights:
        zero["offload_param"] = on_host
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": SEVERAL,
        "zero_optimization": zero,
        "bf16": {"enabled": trainer.precision == "bf16"},
        "data_types": {"grad_accum_dtype": trainer.gradient_dtype},
        "gradient_clipping": optimizer.clip_grad,
        "zero_force_ds_cpu_optimizer": compiled,
        "optimizer": {"type": "AdamW", "params": adam | {"torch_adam": not compiled}},
    }
