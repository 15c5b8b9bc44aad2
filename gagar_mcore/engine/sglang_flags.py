"""The flags of SGLang's server for a model and a recipe."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.devices import device_environment
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.models.config import ModelConfig
from gagar_mcore.models.huggingface import to_hf

Role = Literal["policy", "grader"]
SPARE_TOKENS = 8  # SGLang keeps a few positions of a context to itself
PARSERS = {"mimo_v2": ("mimo", "mimo"), "qwen3_moe": ("qwen25", "qwen3")}  # of tool calls, of reasoning
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server is to do. weights: a directory in Hugging Face format, whose tokens carry `version`. A policy takes and gives
    token ids alone; a grader speaks in messages too."""

    role: Role
    weights: Path
    version: int
    model: ModelConfig
    max_context: int
    deterministic: bool = False
    record_experts: bool = False


def server_flags(serving: Serving, section: EngineSection, port: int, first_gpu: int = 0) -> list[str]:
    """Raises EngineError, see `check_serving`."""
    check_serving(serving, section)
    server, model = section.server, serving.model
    options: dict[str, Any] = {
        "model-path": serving.weights.absolute(),
        "load-format": "safetensors",  # no other format, of which some run code when they are read
        "weight-version": serving.version,
        "host": server.host,
        "port": port,
        "device": section.device,
        "dtype": DTYPES[server.precision or ("fp32" if section.device == "cpu" else "bf16")],
        "tp-size": server.tp,
        "ep-size": server.ep,
        "context-length": serving.max_context + SPARE_TOKENS,
        "max-running-requests": section.max_batch,
        "log-level-http": "warning",
        **_device_options(serving, section, first_gpu),
        **_role_options(serving),
        **_drafting_options(server.drafts),
    }
    switches = ["skip-server-warmup", "sleep-on-idle", "incremental-streaming-output"]
    switches += ["enable-deterministic-inference"] if serving.deterministic else []
    switches += ["enable-return-routed-experts"] if serving.record_experts else []
    switches += ["skip-tokenizer-init"] if serving.role == "policy" else []
    # The trainer takes the GPU meanwhile; SGLang brings the weights back from a copy on the host.
    switches += ["enable-memory-saver", "enable-weights-cpu-backup"] if section.device == "cuda" else []
    if model.family == "mimo_v2":
        options["json-model-override-args"] = json.dumps(as_sglang_reads(model))
    return [*(text for name, value in options.items() for text in (f"--{name}", str(value))), *(f"--{name}" for name in switches)]


def check_serving(serving: Serving, section: EngineSection) -> None:
    """Raises EngineError for what SGLang does not serve."""
    server, model = section.server, serving.model
    if serving.deterministic and section.device == "cpu":
        raise EngineError("deterministic: SGLang has no such mode on a CPU; set engine.kind=embedded, or deterministic to false")
    if server.drafts > model.mtp_layers:
        raise EngineError(f"engine.server.drafts: {server.drafts}, but the model has {model.mtp_layers} layers to draft with")
    if server.drafts and section.device == "cpu":
        raise EngineError("engine.server.drafts: SGLang drafts on a GPU alone; set it to 0")
    if model.family == "mimo_v2" and model.routed_scaling != 1.0:
        raise EngineError(f"routed_scaling_factor: {model.routed_scaling:g}; SGLang computes MiMo-V2 with 1 alone")
    if server.tp % server.ep:
        raise EngineError(f"engine.server.ep: {server.ep} does not divide engine.server.tp {server.tp}")


# Without TorchDynamo: compilation costs seconds, gains nothing here, and fails where the environment's path has a space.
ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


def server_environment(section: EngineSection) -> dict[str, str]:
    return {
        **device_environment(section.device),
        "HF_HUB_OFFLINE": "1",  # a directory that is missing is an error and no name on a hub
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "OMP_NUM_THREADS": str(section.threads),
        **(ON_CPU if section.device == "cpu" else {}),
    }


def as_sglang_reads(model: ModelConfig) -> dict[str, Any]:
    """The fields of a MiMo-V2's `config.json` that SGLang reads, whichever way the checkpoint spells them, so that no code of the
    checkpoint has to run. SGLang counts a window without the query's own key."""
    fields = to_hf(model, published=True)
    rope = {"rope_type": "default", "rope_theta": model.rope_theta, "partial_rotary_factor": model.partial_rotary_factor}
    ours = {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "sliding_window_size": model.window_keys - 1,
        "rope_parameters": rope,
    }
    return {**{name: value for name, value in fields.items() if name not in ("dtype", "model_type")}, **ours}


def _device_options(serving: Serving, section: EngineSection, first_gpu: int) -> dict[str, Any]:
    if section.device == "cuda":
        share = section.server.memory_share
        return {"base-gpu-id": first_gpu, **({} if share is None else {"mem-fraction-static": share})}
    return {
        "attention-backend": "torch_native",
        "sampling-backend": "pytorch",
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "max-total-tokens": section.max_batch * (serving.max_context + SPARE_TOKENS),
    }


def _role_options(serving: Serving) -> dict[str, Any]:
    if serving.role == "policy":
        return {}
    tools, reasoning = PARSERS[serving.model.family]
    return {"tool-call-parser": tools, "reasoning-parser": reasoning}


def _drafting_options(drafts: int) -> dict[str, Any]:
    if drafts == 0:
        return {}
    return {
        "speculative-algorithm": "EAGLE",
        "speculative-num-steps": drafts,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": drafts + 1,
    }
