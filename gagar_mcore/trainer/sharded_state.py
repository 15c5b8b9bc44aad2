"""The state of a policy as Megatron's sharded tensors, which have one name and place in every layout."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from gagar_mcore.trainer.setup import Policy

RESHARDABLE = "fully_reshardable"  # optimizer states in the shapes of their parameters, whatever ranks they are spread over


def sharded_state(policy: Policy, with_random: bool, is_loading: bool = False) -> dict[str, Any]:
    """Model, optimizer states and, where asked for, this rank's random states. When it is not loading, the optimizer's tensors
    are copies in host memory, gathered on the first data-parallel rank. A collective."""
    model, metadata = model_state(policy.chunks), _metadata()
    states = {
        index: optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)["param_state"]
        for index, optimizer in enumerate(policy.optimizer.chained_optimizers)
    }
    random = {"random": _random_object()} if with_random else {}
    return {**model, "optimizer": {index: state for index, state in states.items() if state}, **random}


def model_state(chunks: Sequence[Any]) -> dict[str, Any]:
    """The weights alone, as a checkpoint of a run has them."""
    return {f"model{index}": chunk.sharded_state_dict(metadata=_metadata()) for index, chunk in enumerate(chunks)}


def _metadata() -> dict[str, Any]:
    return {
        "non_homogeneous_layers": True,
        "distrib_optim_sharding_type": RESHARDABLE,
        "distrib_optim_fully_reshardable_mem_efficient": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def restore_state(policy: Policy, state: dict[str, Any], updates: int) -> None:
    """Take over what was loaded into `sharded_state(..., is_loading=True)`, of an optimizer that had made `updates` steps.
    Everything else of the optimizer, like its rates, is the recipe's."""
    for index, chunk in enumerate(policy.chunks):
        chunk.load_state_dict(state[f"model{index}"])
    for index, optimizer in enumerate(policy.optimizer.chained_optimizers):
        own = optimizer.state_dict()
        for group in own["optimizer"]["param_groups"]:
            group["step"] = updates
        loaded = {"param_state": state["optimizer"].get(index, {}), "param_state_sharding_type": RESHARDABLE}
        optimizer.load_state_dict({**own, **loaded})
    if "random" in state:
        _set_random_states(state["random"])


def count_updates(policy: Policy) -> int:
    """Optimizer steps so far, as this rank knows; one without parameters of its own may not."""
    return max((int(group["step"]) for group in policy.optimizer.param_groups), default=0)


def layout_sizes() -> dict[str, int]:
    """The sizes of all groups, by the recipe's names."""
    return {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "vpp": parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "cp": parallel_state.get_context_parallel_world_size(),
        "ep": parallel_state.get_expert_model_parallel_world_size(),
        "etp": parallel_state.get_expert_tensor_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
    }


def _random_object() -> ShardedObject:
    states = {"host": torch.get_rng_state(), "device": torch.cuda.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    return ShardedObject("random", states, (dist.get_world_size(),), (dist.get_rank(),))


def _set_random_states(states: dict[str, Any]) -> None:
    get_cuda_rng_tracker().set_states(states["tracker"])
    torch.cuda.set_rng_state(states["device"])
    torch.set_rng_state(states["host"])
