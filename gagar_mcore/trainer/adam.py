"""AdamW whose state lies on the device or on the host."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

BLOCK = 1 << 24
MOMENTS = ("exp_avg", "exp_avg_sq")
Part = tuple[Tensor, ...]  # weights, gradients, master weights and moments of the same values


class StreamedAdamW:
    """Updates the flat shards of parameters that Megatron's distributed optimizer gives a rank, from their `decoupled_grad`, by
    the formula of https://arxiv.org/abs/1711.05101. Has the methods of Transformer Engine's FusedAdam that Megatron calls.

    The state of a parameter are two moments in `moment_dtype` and, unless it is fp32 itself, an fp32 master weight, taken from
    it when it is first updated. State lies with the parameter or, `on_host`, in the host's memory, pinned where the parameter is
    on a GPU. An update brings `block` values at a time to the device, computes in fp32 and writes back, so that it comes to the
    same bits in either place and needs a few times `block` floats of room.

    A moment moves by at least 1 - beta of what it lacks each step; bf16 resolves 1/256 of a value, so betas up to .99 move it."""

    def __init__(self, groups: list[dict[str, Any]], moment_dtype: torch.dtype, on_host: bool, block: int = BLOCK) -> None:
        """groups: with `params`, `lr`, `betas`, `eps` and `weight_decay`, read anew at each step."""
        self.param_groups = groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.moment_dtype, self.on_host, self.block = moment_dtype, on_host, block
        for group in groups:
            group.setdefault("step", 0)

    @torch.no_grad()
    def step(self) -> None:
        self._make_state()
        for group in self.param_groups:
            group["step"] += 1
            for parts in self._parts(group["params"]):
                self._update(parts, group)
        if self.on_host and any(parameter.is_cuda for parameter in self.state):
            torch.cuda.synchronize()  # whoever reads the host's memory next finds it written

    def state_bytes(self) -> int:
        """Memory of the state of this rank's parameters, wherever it lies."""
        self._make_state()
        held = [(parameter, tensor) for parameter, tensors in self.state.items() for tensor in tensors.values()]
        return sum(tensor.nbytes for parameter, tensor in held if tensor.data_ptr() != parameter.data_ptr())

    def state_dict(self) -> dict[str, Any]:
        """What ranks have in common: options and step count of the groups. Megatron looks for the count where PyTorch's Adam has
        it, too, and relies on the state of every parameter once it has asked."""
        self._make_state()
        groups = [{**group, "params": list(range(len(group["params"])))} for group in self.param_groups]
        return {"state": {0: {"step": torch.tensor(float(self.param_groups[0]["step"]))}}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The groups alone; `set_scaled_state` then sets the state of each parameter."""
        self._make_state()
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group |= {**loaded, "params": group["params"], "step": int(loaded["step"])}

    def get_unscaled_state(self, parameter: Tensor, name: str) -> Tensor:
        return self.state[parameter][name]

    def set_scaled_state(self, parameter: Tensor, name: str, value: Tensor) -> None:
        self.state[parameter][name].copy_(value)

    @torch.no_grad()
    def _make_state(self) -> None:
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter not in self.state:
                is_master = parameter.dtype == torch.float32
                master = parameter.detach() if is_master else self._zeros(parameter, torch.float32).copy_(parameter)
                self.state[parameter] = {"master_param": master} | {
                    name: self._zeros(parameter, self.moment_dtype) for name in MOMENTS
                }

    def _zeros(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        if self.on_host:
            return torch.zeros(len(parameter), dtype=dtype, pin_memory=parameter.is_cuda)
        return torch.zeros_like(parameter, dtype=dtype)

    def _update(self, parts: list[Part], group: dict[str, Any]) -> None:
        fetched = [
            [tensor.to(weights.device, torch.float32, non_blocking=True, copy=self.on_host) for tensor in held]
            for weights, _, *held in parts
        ]
        masters, averages, squares = map(list, zip(*fetched, strict=True))
        beta1, beta2 = group["betas"]
        adam(
            masters,
            [gradients.float() for _, gradients, *_ in parts],
            averages,
            squares,
            [],
            [torch.tensor(float(group["step"] - 1), device=master.device) for master in masters],
            decoupled_weight_decay=True,
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
        for (weights, _, *held), computed in zip(parts, fetched, strict=True):
            for source, target in zip((computed[0], *computed), (weights, *held), strict=True):
                if source is not target:
                    target.copy_(source, non_blocking=True)

    def _parts(self, parameters: list[Tensor]) -> Iterator[list[Part]]:
        """Of all parameters, together at most `block` values at a time."""
        together: list[Part] = []
        room = self.block
        for part in chain.from_iterable(map(self._blocks, parameters)):
            if together and len(part[0]) > room:
                yield together
                together, room = [], self.block
            together.append(part)
            room -= len(part[0])
        if together:
            yield together

    def _blocks(self, parameter: Tensor) -> Iterable[Part]:
        """At most `block` values at a time."""
        tensors = (parameter, parameter.decoupled_grad, *self.state[parameter].values())  # type: ignore[attr-defined]
        if len(parameter) <= self.block:
            return [tensors]
        return zip(*(tensor.split(self.block) for tensor in tensors), strict=True)
