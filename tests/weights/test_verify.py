"""Published weights are hashed where they were written by another host, and once."""

import pytest
import torch
from stored import write_plain

from gagar_mcore.records.store import RecordError, publish_directory
from gagar_mcore.weights.hosts import host_id
from gagar_mcore.weights.verify import verify_weights


def publish(path, host):
    def fill(directory):
        write_plain({"a": torch.arange(6.0)}.items(), {"config.json": b"{}"}, directory)
        return {"host": host}

    publish_directory(path, "weights", 1, fill)
    return path


def flip_a_bit(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def test_what_comes_from_elsewhere_is_hashed_the_first_time(tmp_path):
    weights = publish(tmp_path / "0-000001", "elsewhere")
    flip_a_bit(weights)
    for _ in range(2):
        with pytest.raises(RecordError, match=r"model\.safetensors: missing or damaged"):
            verify_weights(weights)
    flip_a_bit(weights)
    verify_weights(weights)
    flip_a_bit(weights)
    verify_weights(weights)


def test_what_was_published_on_this_host_is_not_hashed_again_but_must_be_whole(tmp_path):
    weights = publish(tmp_path / "0-000001", host_id())
    flip_a_bit(weights)
    verify_weights(weights)
    with open(weights / "model.safetensors", "ab") as file:
        file.write(b"0")
    with pytest.raises(RecordError, match=r"model\.safetensors: missing or damaged"):
        verify_weights(weights)
