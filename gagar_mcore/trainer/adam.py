"""Adam with small moments."""

from typing import Any

import torch
from torch.optim.adam import adam


class CompactAdamW(torch.optim.AdamW):
    """Keeps both moments in bf16, 4 bytes a parameter instead of 8, and computes each update in fp32, one parameter at a time.

    A moment moves by at least 1 - beta of what it lacks each step; bf16 resolves 1/256 of a value, so betas up to about .99 still
    move it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        average, square = state["exp_avg"].float(), state["exp_avg_sq"].float()
        beta1, beta2 = group["betas"]
        adam(
            [parameter],
            [parameter.grad.to(parameter.dtype)],  # type: ignore[union-attr]
            [average],
            [square],
            [],
            [state["step"]],
            decoupled_weight_decay=True,
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
        state["exp_avg"], state["exp_avg_sq"] = average.bfloat16(), square.bfloat16()
