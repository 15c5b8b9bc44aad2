"""What is found in a column, entry by entry; that all ranks refuse it alike is tested in test_losses.py."""

import numpy as np
import pytest
from conftest import random_batch

from gagar_mcore.models.presets import preset
from gagar_mcore.records.batch import read_batch, write_columns
from gagar_mcore.records.store import publish_directory

TINY = preset("tiny")


def found(column: str, entries, defects) -> list[str]:
    return [defect.what.split(";")[0] for defect in defects if defect.column == column and defect.is_in(np.asarray(entries))]


@pytest.mark.parametrize(
    ("column", "entries", "expected"),
    [
        ("tokens", [0, 511], []),
        ("tokens", [0, 512], ["holds ids beyond the 512 of the model"]),
        ("tokens", [-1, 3], ["holds ids beyond the 512 of the model"]),
        ("logprobs", [-0.5, np.nan, np.inf], ["holds nan", "holds an infinity"]),
        ("loss_mask", np.array([0, 1, 1], np.uint8), []),
        ("loss_mask", np.array([0, 255], np.uint8), ["holds marks other than 0 and 1"]),
        ("loss_mask", [1, 0], ["marks the first token of a sequence, which nothing predicts"]),
        ("loss_mask", [], []),
        ("error_mask", [1, 0], []),
    ],
)
def test_columns_of_tokens(column, entries, expected):
    from gagar_mcore.trainer.batch_checks import token_defects

    assert found(column, entries, token_defects(TINY.vocab_size)) == expected


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([[0, 7], [-1, -1]], []),
        ([[0, 8], [1, 2]], ["holds ids beyond the 8 of the model"]),
        ([[0, -2], [1, 2]], ["holds ids beyond the 8 of the model"]),
        ([[3, 3], [1, 2]], ["sends a token to an expert twice, or to too few"]),
        ([[3, -1], [1, 2]], ["sends a token to an expert twice, or to too few"]),
    ],
)
def test_recorded_experts(choices, expected):
    from gagar_mcore.trainer.batch_checks import expert_defects

    assert found("experts", [choices], expert_defects(TINY.num_experts)) == expected


def test_a_column_is_named_by_its_file(tmp_path):
    from gagar_mcore.trainer.batch_checks import column_file

    batch = random_batch(0)
    publish_directory(tmp_path / "batch", "batch", 1, lambda directory: write_columns(batch, directory) or {})
    assert column_file(read_batch(tmp_path / "batch")[0], "experts") == str(tmp_path / "batch" / "experts.bin")
    assert column_file(batch, "tokens") == "batch: tokens"
