import json
import shutil
from collections import ChainMap
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import write_stored

from gagar_mcore.engine.cache import Chunk
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.models.huggingface import read_config, to_hf
from gagar_mcore.models.init import random_tensors
from gagar_mcore.models.weight_map import tensor_shapes
from gagar_mcore.records.store import publish_directory
from gagar_mcore.weights.files import read_companions
from gagar_mcore.weights.published import PublishedCheckpoint, open_checkpoint
from gagar_mcore.weights.storage import Storage

EXPERT = "model.layers.1.mlp.experts.3.gate_proj.weight"


@pytest.fixture
def policy(checkpoint):
    return Policy(checkpoint, version=0, rows=2, max_context=32)


def logits(policy):
    return policy.forward(Chunk.of([0], [[5, 6, 7]], [0]))


def changed(checkpoint, directory, change):
    """A copy of the checkpoint whose tensors went through `change`."""
    shutil.copytree(checkpoint, directory)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def test_new_weights_replace_the_old_and_drop_the_cache(policy, make_checkpoint, tmp_path):
    before = logits(policy)
    new = make_checkpoint(tmp_path / "new", seed=1)
    policy.load(new, 1)
    assert policy.version == 1
    assert all((keys == 0).all() for keys in policy.cache._keys)
    after = logits(policy)
    assert not torch.allclose(before, after)
    assert torch.equal(after, logits(Policy(new, 1, 2, 32)))


def test_equal_weights_give_equal_bits_wherever_the_file_puts_them(policy, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "copy")
    path = tmp_path / "copy" / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "note": "x" * 20})
    before = logits(policy)
    policy.load(tmp_path / "copy", 1)
    assert torch.equal(before, logits(policy))


def test_the_file_is_no_longer_needed_once_loaded(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "copy")
    policy = Policy(tmp_path / "copy", 0, 2, 32)
    before = logits(policy)
    with open(tmp_path / "copy" / "model.safetensors", "r+b") as file:
        file.write(b"\xff" * 2**20)
    assert torch.equal(before, logits(policy))


@pytest.mark.parametrize("name", ["lm_head.weight", EXPERT, "model.layers.1.self_attn.attention_sink_bias"])
def test_a_missing_tensor_is_refused_by_name_and_the_old_weights_stay(policy, checkpoint, tmp_path, name):
    before = logits(policy)
    directory = changed(checkpoint, tmp_path / "bad", lambda tensors: tensors.pop(name))
    with pytest.raises(EngineError) as error:
        policy.load(directory, 1)
    assert str(directory) in str(error.value) and name in str(error.value)
    assert policy.version == 0
    assert torch.equal(before, logits(policy))


def test_an_unknown_tensor_is_refused_by_name(policy, checkpoint, tmp_path):
    extra = "model.layers.7.mlp.up_proj.weight"
    directory = changed(checkpoint, tmp_path / "bad", lambda tensors: tensors.update({extra: torch.zeros(1)}))
    with pytest.raises(EngineError, match=extra):
        policy.load(directory, 1)


@pytest.mark.parametrize("name", ["lm_head.weight", EXPERT])
def test_a_tensor_of_another_shape_is_refused_by_name(policy, checkpoint, tmp_path, name):
    directory = changed(checkpoint, tmp_path / "bad", lambda tensors: tensors.update({name: tensors[name][:, 1:].contiguous()}))
    with pytest.raises(EngineError) as error:
        policy.load(directory, 1)
    assert name in str(error.value)


def test_weights_that_are_no_numbers_are_refused_by_name(policy, checkpoint, tmp_path):
    directory = changed(checkpoint, tmp_path / "bad", lambda tensors: tensors[EXPERT].fill_(torch.nan))
    with pytest.raises(EngineError, match=rf"model\.safetensors: {EXPERT}: holds weights that are not finite"):
        policy.load(directory, 1)


def test_a_published_directory_is_verified(policy, checkpoint, tmp_path):
    def fill(directory):
        shutil.copytree(checkpoint, directory, dirs_exist_ok=True)
        return {}

    publish_directory(tmp_path / "weights", "weights", 1, fill)
    policy.load(tmp_path / "weights", 1)
    path = tmp_path / "weights" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(EngineError, match=f"{path}: missing or damaged"):
        policy.load(tmp_path / "weights", 2)


def test_a_directory_without_a_model_is_refused(checkpoint, tmp_path):
    with pytest.raises(EngineError, match=f"{tmp_path / 'config.json'}: no such file"):
        Policy(tmp_path, 0, 2)
    shutil.copy(checkpoint / "config.json", tmp_path)
    with pytest.raises(EngineError, match=f"{tmp_path}: holds no safetensors file"):
        Policy(tmp_path, 0, 2)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(EngineError, match=f"{tmp_path / 'model.safetensors'}: damaged"):
        Policy(tmp_path, 0, 2)


@pytest.mark.parametrize(("format", "naming"), [("fp8", "fused"), ("fp8", "split"), ("mxfp4", "fused"), ("bf16", "fused")])
def test_weights_are_run_however_a_checkpoint_stores_them(policy, checkpoint, tmp_path, format, naming):
    source, companions = PublishedCheckpoint(checkpoint), read_companions(checkpoint)
    model = replace(source.model, mtp_layers=1)
    read = ChainMap({name: source.read(name) for name in source.shapes}, mtp_tensors(model)).__getitem__
    published = write_stored(Storage(model, format, naming), read, companions, tmp_path / "published", max_bytes=100_000)
    read = open_checkpoint(published)
    plain = write_stored(Storage(source.model, "fp32"), read, companions, tmp_path / "plain")

    assert len(list(published.glob("*.safetensors"))) > 5
    before = logits(policy)
    after = logits(Policy(published, 0, 2, 32))
    assert torch.equal(after, logits(Policy(plain, 0, 2, 32)))
    assert 0 < (after - before).abs().mean() < before.std()
    policy.load(published, 1)
    assert torch.equal(logits(policy), after)


def mtp_tensors(model):
    read = random_tensors(model, seed=3)
    return {name: read(name) for name in tensor_shapes(model) if name.startswith("model.mtp.")}


def test_key_value_heads_that_transformers_cannot_express_are_refused(checkpoint, tmp_path):
    model = replace(read_config(checkpoint), sliding_kv_heads=2)
    (tmp_path / "config.json").write_text(json.dumps(to_hf(model)))
    with pytest.raises(EngineError, match=r"config\.json: 2 key-value heads on sliding layers and 2 on global ones"):
        Policy(tmp_path, 0, 2)


def test_another_architecture_is_refused(policy, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "other")
    config = json.loads((checkpoint / "config.json").read_text()) | {"sliding_window": 33}
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=f"{tmp_path / 'other' / 'config.json'}: describes another architecture"):
        policy.load(tmp_path / "other", 1)


def test_a_released_policy_comes_back_with_its_weights_and_an_empty_cache(policy):
    before = logits(policy)
    policy.release()
    assert policy.cache is None
    assert torch.equal(logits(policy), before)
    assert (policy.cache._keys[0] != 0).any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_gpu_that_is_missing_is_said_before_weights_are_read(tmp_path):
    with pytest.raises(EngineError, match=r"engine\.device: cuda, but torch sees no GPU"):
        Policy(tmp_path, 0, 2, device="cuda")
