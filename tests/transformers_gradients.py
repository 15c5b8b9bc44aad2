"""Gradients of a model of transformers."""

from torch import Tensor
from transformers import PreTrainedModel


def checkpoint_gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """By the names that are saved: transformers holds the experts of a layer in one tensor."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(parameter.grad):
                gate, up = both.chunk(2)
                prefix = name.removesuffix("gate_up_proj") + f"{expert}"
                gradients |= {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            gradients |= {f"{prefix}{expert}.down_proj.weight": down for expert, down in enumerate(parameter.grad)}
        else:
            gradients[name.replace("self_attn.sinks", "self_attn.attention_sink_bias")] = parameter.grad
    return gradients
