import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from gagar_mcore.config.rollout import EngineSection, ServerSection
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.engine.sglang_flags import Serving, as_sglang_reads, server_environment, server_flags
from gagar_mcore.models.presets import preset

TINY = preset("tiny")
POLICY = Serving("policy", Path("/w"), 3, TINY, 512, record_experts=True)


def flags(serving=POLICY, device="cpu", **server):
    section = EngineSection(kind="sglang", device=device, max_batch=4, server=ServerSection(**server))
    words = server_flags(serving, section, 4000)
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_a_policy_speaks_in_token_ids_and_a_grader_in_messages():
    policy, grader = flags(), flags(replace(POLICY, role="grader", record_experts=False))
    assert {"--skip-tokenizer-init", "--enable-return-routed-experts"} <= policy.keys()
    assert not {"--skip-tokenizer-init", "--enable-return-routed-experts"} & grader.keys()
    assert (grader["--tool-call-parser"], grader["--reasoning-parser"]) == ("mimo", "mimo")
    assert (policy["--model-path"], policy["--weight-version"], policy["--port"]) == ("/w", "3", "4000")


def test_no_code_of_a_checkpoint_runs():
    for device in ("cpu", "cuda"):
        given = flags(device=device)
        assert given["--load-format"] == "safetensors"
        assert "--trust-remote-code" not in given
    assert server_environment(EngineSection())["HF_HUB_OFFLINE"] == "1"


def test_the_cpu_has_plain_kernels_in_fp32_and_a_gpu_is_left_to_the_trainer_in_turn():
    cpu, cuda = flags(), flags(device="cuda", tp=8, ep=4, memory_share=0.7)
    assert (cpu["--attention-backend"], cpu["--dtype"]) == ("torch_native", "float32")
    assert (cuda["--tp-size"], cuda["--ep-size"], cuda["--mem-fraction-static"], cuda["--dtype"]) == ("8", "4", "0.7", "bfloat16")
    assert "--enable-memory-saver" in cuda
    assert "--attention-backend" not in cuda
    assert server_environment(EngineSection(device="cuda")).keys().isdisjoint({"SGLANG_USE_CPU_ENGINE", "CUDA_VISIBLE_DEVICES"})


def test_drafts_come_from_as_many_layers_as_the_model_has():
    drafting = flags(replace(POLICY, model=replace(TINY, mtp_layers=3)), "cuda", drafts=3)
    assert (drafting["--speculative-num-steps"], drafting["--speculative-num-draft-tokens"]) == ("3", "4")


@pytest.mark.parametrize("includes_self", [True, False])
def test_a_window_is_counted_without_the_querys_own_key(includes_self):
    model = replace(TINY, window_includes_self=includes_self)
    assert as_sglang_reads(model)["sliding_window_size"] == TINY.sliding_window - includes_self


def test_a_qwen_is_read_as_transformers_spells_it():
    assert "--json-model-override-args" not in flags(replace(POLICY, model=preset("qwen3-30b-a3b")))
    assert json.loads(flags()["--json-model-override-args"])["hybrid_layer_pattern"] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("serving", "server", "message"),
    [
        (replace(POLICY, deterministic=True), {}, "deterministic: SGLang has no such mode on a CPU"),
        (POLICY, {"drafts": 1}, r"engine\.server\.drafts: 1, but the model has 0 layers"),
        (replace(POLICY, model=replace(TINY, mtp_layers=1)), {"drafts": 1}, r"engine\.server\.drafts: .* on a GPU alone"),
        (replace(POLICY, model=replace(TINY, routed_scaling=2.5)), {}, "routed_scaling_factor: 2.5"),
        (POLICY, {"tp": 4, "ep": 3}, r"engine\.server\.ep: 3 does not divide engine\.server\.tp 4"),
    ],
)
def test_what_sglang_does_not_serve_is_refused(serving, server, message):
    with pytest.raises(EngineError, match=message):
        flags(serving, **server)


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8", "example.org", "::1"])
def test_a_server_binds_to_no_address_that_others_reach(host):
    with pytest.raises(ValidationError, match=host):
        ServerSection(host=host)
