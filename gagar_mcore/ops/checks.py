"""Arguments of the fused step that cannot be right, refused by name."""

import torch
import torch.distributed as dist
from torch import Tensor

from gagar_mcore.ops.behaviour import Behaviour
from gagar_mcore.ops.layout import TokenLayout
from gagar_mcore.ops.spec import LossSpec


def check_columns(
    columns: dict[str, Tensor | None],
    rollout_logprobs: Tensor | None,
    flags: Tensor,
    advantages: Tensor | None,
    weights: Tensor | None,
    layout: TokenLayout,
) -> None:
    log_dtypes = (torch.float32, torch.bfloat16)
    for name, value in columns.items():
        check_tensor(name, value, layout.num_local, "num_local", log_dtypes, flags.device)
        if value is not None and value.dtype != columns["logprobs"].dtype:  # type: ignore[union-attr]
            raise ValueError(f"{name}: must have the dtype of logprobs, got {value.dtype}")
    check_tensor("rollout_logprobs", rollout_logprobs, layout.num_tokens, "num_tokens", (torch.float32,), flags.device)
    check_tensor("flags", flags, layout.num_tokens, "num_tokens", (torch.uint8,), layout.cu_seqlens.device)
    for name, value in (("advantages", advantages), ("weights", weights)):
        check_tensor(name, value, layout.num_sequences, "S", (torch.float64,), flags.device)


def check_behaviour(behaviour: Behaviour | None, device: torch.device) -> None:
    if behaviour is not None:
        check_tensor("behaviour.scale", behaviour.scale, 2, "alpha, beta", (torch.float64,), device)


def check_tensor(
    name: str, value: Tensor | None, length: int, meaning: str, dtypes: tuple[torch.dtype, ...], device: torch.device
) -> None:
    if value is None:
        return
    if value.dtype not in dtypes:
        raise ValueError(f"{name}: must be {' or '.join(str(dtype) for dtype in dtypes)}, got {value.dtype}")
    if value.dim() != 1 or len(value) != length:
        raise ValueError(f"{name}: must have the shape [{meaning}] = [{length}], got {list(value.shape)}")
    if not value.is_contiguous():
        raise ValueError(f"{name}: must be contiguous; call .contiguous() on it")
    if value.device != device:
        raise ValueError(f"{name}: is on {value.device}, but its company on {device}; move one of them")


def check_spec(
    spec: LossSpec, old: Tensor | None, ref: Tensor | None, layout: TokenLayout, cp_group: dist.ProcessGroup | None
) -> None:
    if spec.name == "mimo" and old is not None:
        raise ValueError("old_logprobs: mimo takes its ratio to the rollout; leave them out")
    if spec.tis_cap is not None and old is None:
        raise ValueError("old_logprobs: tis_cap bounds the ratio of the old policy to the rollout's and needs them")
    if spec.kl_coef > 0 and ref is None:
        raise ValueError("ref_logprobs: kl_coef is above 0 and needs them")
    if spec.name == "gspo" and layout.cp_size > 1 and cp_group is None:
        raise ValueError("cp_group: gspo needs the log-ratios of a sequence's tokens on all context-parallel ranks")
