import json
from dataclasses import replace

import pytest
from transformers import AutoConfig

from gagar_mcore.models.huggingface import from_hf, read_config, to_hf
from gagar_mcore.models.presets import preset


def test_transformers_reads_what_is_written_and_writes_what_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_hf(preset("tiny"))))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")

    assert read_config(tmp_path / "again") == preset("tiny")


def test_the_tiny_model_has_the_features_of_the_large_ones():
    tiny = preset("tiny")

    assert [tiny.is_sliding(i) for i in range(4)] == [False, True, True, False]
    assert [tiny.layer_kv_heads(i) for i in range(4)] == [2, 4, 4, 2]
    assert tiny.moe_layers == (False, True, True, True)
    assert tiny.rotary_dim == 10
    assert tiny.v_head_dim != tiny.head_dim


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("tie_word_embeddings", True),
        ("n_group", 2),
        ("norm_topk_prob", False),
    ],
)
def test_another_architecture_is_refused_by_the_field_that_differs(tmp_path, key, value):
    (tmp_path / "config.json").write_text(json.dumps(to_hf(preset("tiny")) | {key: value}))

    with pytest.raises(ValueError, match=rf"config\.json: {key} "):
        read_config(tmp_path)


def test_a_missing_field_is_named(tmp_path):
    data = to_hf(preset("tiny"))
    del data["v_head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(data))

    with pytest.raises(ValueError, match="'v_head_dim' is missing"):
        read_config(tmp_path)


def test_what_transformers_cannot_express_is_written_as_published(tmp_path):
    pro = replace(preset("tiny"), sliding_kv_heads=2, mtp_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(to_hf(pro)))

    assert to_hf(pro)["model_type"] == "mimo_v2"
    assert read_config(tmp_path) == pro


@pytest.mark.parametrize(
    ("key", "value"), [("scoring_func", "softmax"), ("swa_head_dim", 16), ("add_full_attention_sink_bias", True)]
)
def test_a_published_configuration_that_differs_is_refused(key, value):
    data = to_hf(replace(preset("tiny"), sliding_kv_heads=2))
    with pytest.raises(ValueError, match=key):
        from_hf(data | {key: value})


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ValueError, match="tiny"):
        preset("huge")
