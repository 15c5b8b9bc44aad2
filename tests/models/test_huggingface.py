"""What cannot be read from a `config.json` is said in one line with file and field."""

import json
from dataclasses import replace

import pytest

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.config.load import RecipeError
from gagar_mcore.launcher.convert import convert
from gagar_mcore.models.huggingface import from_hf, read_config, to_hf
from gagar_mcore.models.presets import PRESETS, preset

TINY, PUBLISHED, QWEN = preset("tiny"), replace(preset("tiny"), sliding_kv_heads=2), preset("qwen3-30b-a3b")
ROPE = to_hf(TINY)["rope_parameters"]
GONE = object()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("published", [False, True])
def test_what_is_written_is_read(name, published):
    if published or name != "tiny":
        assert from_hf(json.loads(json.dumps(to_hf(preset(name), published)))) == preset(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "holds no JSON object"),
        (b"null", "holds no JSON object"),
        (b"{}", "field 'model_type' is missing"),
        (b'{"model_type": []}', r"model_type \[\] is none of"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.json: {message}") as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["absent", "a directory"])
def test_a_file_that_cannot_be_read(tmp_path, what):
    if what == "a directory":
        (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"config\.json: .*; name a directory in Hugging Face format"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (TINY, {"vocab_size": "512"}, "vocab_size: .*valid integer, got '512'"),
        (TINY, {"hidden_size": 0}, "hidden_size: .*greater than or equal to 1, got 0"),
        (TINY, {"head_dim": 32.5}, "head_dim: .*valid integer"),
        (TINY, {"head_dim": True}, "head_dim: .*valid integer, got True"),
        (TINY, {"rms_norm_eps": float("nan")}, "rms_norm_eps: .*finite number"),
        (TINY, {"attention_value_scale": GONE}, "field 'attention_value_scale' is missing"),
        (TINY, {"head_dim": GONE, "v_head_dim": GONE}, "'head_dim' is missing; field 'v_head_dim' is missing"),
        (TINY, {"rope_parameters": 3}, "rope_parameters: should be an object, got 3"),
        (
            TINY,
            {"rope_parameters": {**ROPE, "full_attention": {}}},
            r"field 'rope_parameters\.full_attention\.rope_type' is missing",
        ),
        (TINY, {"layer_types": "full_attention"}, "layer_types: .*valid list"),
        (TINY, {"layer_types": ["global"] * 4}, r"layer_types\.0: .*; layer_types\.2: .*; and 1 more"),
        (TINY, {"num_hidden_layers": 5}, "layer_types has 4 entries, num_hidden_layers is 5"),
        (TINY, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types has 1 entries, num_hidden_layers is 4"),
        (TINY, {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads 4"),
        (TINY, {"num_key_value_heads": 4}, "num_attention_heads: 4 is no multiple of the 8 key-value heads of sliding layers"),
        (TINY, {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than n_routed_experts 8"),
        (PUBLISHED, {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern has 2 entries, num_hidden_layers is 4"),
        (PUBLISHED, {"hybrid_layer_pattern": [0, 1, 2, 0]}, r"hybrid_layer_pattern\.2: .*0 or 1, got 2"),
        (PUBLISHED, {"moe_layer_freq": 1}, "moe_layer_freq: .*valid list, got 1"),
        (PUBLISHED, {"moe_layer_freq": [1]}, "moe_layer_freq has 1 entries"),
        (PUBLISHED, {"rope_scaling": [1]}, "rope_scaling: .*dictionary"),
        (PUBLISHED, {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers: .*0"),
        (QWEN, {"num_hidden_layers": 10**9}, "num_hidden_layers: .*got 1000000000"),
        (QWEN, {"mlp_only_layers": [48]}, "mlp_only_layers: names layer 48, num_hidden_layers is 48"),
        (QWEN, {"rope_parameters": GONE}, "field 'rope_theta' is missing"),
        (QWEN, {"num_experts": GONE}, "field 'num_experts' is missing"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_field_that_is_wrong_is_named(model, changes, message):
    data = {key: value for key, value in {**to_hf(model), **changes}.items() if value is not GONE}
    with pytest.raises(ValueError, match=message) as caught:
        from_hf(data)
    assert "\n" not in str(caught.value)


def test_a_conversion_of_such_a_directory_ends_before_it_begins(tmp_path):
    data = to_hf(TINY) | {"num_hidden_layers": 5}
    (tmp_path / "config.json").write_text(json.dumps(data))
    job = Conversion(direction="megatron-to-hf", source=tmp_path, target=tmp_path / "target", companions=tmp_path)
    with pytest.raises(RecipeError, match=r"config\.json: layer_types has 4 entries"):
        convert(job)
