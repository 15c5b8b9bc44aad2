"""Files of what changed: to the bit, small where little changed, and refused where they do not fit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gagar_mcore.weights.changes import apply_changes, decode_places, encode_places, write_changes

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8]


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 300_000), min_size=1, max_size=60), st.integers(1, 40))
def test_places_come_back(places, dense):
    ascending = np.array(sorted(places | set(range(dense))), np.int64)
    assert decode_places(encode_places(ascending)).tolist() == ascending.tolist()


def test_places_are_told_as_the_format_says():
    """By hand: 0 and 3 lie 0 and 2 behind; 260 has 256 before it, 255 of which one number stands for."""
    assert encode_places(np.array([0, 3, 260])).tolist() == [0, 2, 255, 1]
    assert encode_places(np.arange(10) * 1_000_000 + 5).dtype == np.uint32


def random_file(path, dtype, seed, values=40_000):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(values, generator=generator) * 0.1
    stored = (tensor * 100).to(torch.uint8) if dtype == torch.uint8 else tensor.to(dtype)
    save_file({"odd": torch.zeros(3, dtype=torch.uint8), "weight": stored.view(-1, 100), "same": torch.ones(50)}, path)
    return stored


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_that_changes_three_of_a_hundred_values_takes_less_than_a_tenth_of_the_bytes(dtype, tmp_path):
    base, target, changes = (tmp_path / name for name in ("base", "target", "changes"))
    old, other = random_file(base, dtype, 1), random_file(tmp_path / "other", dtype, 2)
    chosen = torch.rand(len(old), generator=torch.Generator().manual_seed(3)) < 0.03
    new = torch.where(chosen, other.view(torch.uint8).view(len(old), -1).T, old.view(torch.uint8).view(len(old), -1).T)
    tensors = load_file(base) | {"weight": new.T.contiguous().view(dtype).view(-1, 100)}
    save_file(tensors, target)
    write_changes(base, target, changes)

    assert changes.stat().st_size < 0.1 * target.stat().st_size
    apply_changes(base, changes)
    assert base.read_bytes() == target.read_bytes()


def test_nothing_changed_says_nothing(tmp_path):
    random_file(tmp_path / "base", torch.float32, 1)
    write_changes(tmp_path / "base", tmp_path / "base", tmp_path / "changes")
    assert (tmp_path / "changes").stat().st_size < 100


def test_every_value_changed_takes_no_more_than_they_do_and_a_byte_each(tmp_path):
    for seed in (1, 2):
        random_file(tmp_path / str(seed), torch.float32, seed)
    write_changes(tmp_path / "1", tmp_path / "2", tmp_path / "changes")
    assert (tmp_path / "changes").stat().st_size < 1.05 * (tmp_path / "2").stat().st_size
    apply_changes(tmp_path / "1", tmp_path / "changes")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_files_of_other_layouts_and_damaged_changes_are_refused(tmp_path):
    base, other, changes = (tmp_path / name for name in ("base", "other", "changes"))
    random_file(base, torch.float32, 1)
    random_file(other, torch.float32, 2, values=4_000)
    with pytest.raises(ValueError, match=r"other: is laid out otherwise than .*base"):
        write_changes(base, other, changes)
    random_file(tmp_path / "target", torch.float32, 2)
    write_changes(base, tmp_path / "target", changes)
    with pytest.raises(ValueError, match=r"changes: damaged, or not of .*other"):
        apply_changes(other, changes)
    content = bytearray(changes.read_bytes())
    content[len(content) // 2] ^= 1
    changes.write_bytes(content)
    with pytest.raises(ValueError, match="changes: damaged"):
        apply_changes(base, changes)
