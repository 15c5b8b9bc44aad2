import json

import pytest
from transformers import AutoConfig

from gagar_mcore.models.huggingface import from_hf, read_config, to_hf
from gagar_mcore.models.presets import preset


def test_transformers_reads_what_is_written_and_writes_what_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_hf(preset("qwen3-30b-a3b"))))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")

    assert read_config(tmp_path / "again") == preset("qwen3-30b-a3b")


@pytest.mark.parametrize(("key", "value"), [("norm_topk_prob", False), ("use_sliding_window", True), ("decoder_sparse_step", 2)])
def test_another_architecture_is_refused_by_the_field_that_differs(key, value):
    with pytest.raises(ValueError, match=key):
        from_hf(to_hf(preset("qwen3-30b-a3b")) | {key: value})
