import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.trainer.sequences import step_sequences

BOUNDS = np.array([10, 13, 20, 22])  # three sequences of a step that begins at token 10
COLUMN = np.arange(30)


def test_entries_and_bounds_follow_the_asked_order():
    sequences = step_sequences(BOUNDS, TrainerSection())

    assert_array_equal(sequences.select(COLUMN, [2, 0]), [20, 21, 10, 11, 12])
    assert_array_equal(sequences.bounds([2, 0]), [0, 2, 5])
    assert len(sequences.select(COLUMN, [])) == 0
    assert_array_equal(sequences.bounds([]), [0])


def test_what_is_too_long_is_refused_with_the_mend():
    with pytest.raises(ValueError, match=r"1 of 3 sequences .*max_tokens_per_sequence=3, the longest has 7 .*overlong=truncate"):
        step_sequences(BOUNDS, TrainerSection(max_tokens_per_sequence=3))
    assert step_sequences(BOUNDS, TrainerSection(max_tokens_per_sequence=7)).metrics()["truncated_sequences"] == 0


def test_what_is_too_long_loses_its_end_and_is_counted():
    sequences = step_sequences(BOUNDS, TrainerSection(max_tokens_per_sequence=3, overlong="truncate"))

    assert_array_equal(sequences.select(COLUMN, [1]), [13, 14, 15])
    assert_array_equal(sequences.bounds([0, 1, 2]), [0, 3, 6, 8])
    assert sequences.metrics() == {"truncated_sequences": 1.0, "truncated_tokens": 4.0}


def test_truncation_without_a_limit_is_refused():
    with pytest.raises(ValueError, match="set max_tokens_per_sequence"):
        TrainerSection(overlong="truncate")
