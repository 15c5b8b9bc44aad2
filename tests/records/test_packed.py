"""One number a token, in memory and in JSON."""

import json
from array import array
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from gagar_mcore.records.serialize import from_plain, to_plain
from gagar_mcore.records.types import Trajectory


def test_numbers_are_a_few_bytes_each_and_numpy_reads_them_without_a_copy(make_trajectory: Callable[..., Trajectory]) -> None:
    trajectory = make_trajectory()
    columns = (trajectory.token_ids, trajectory.logprobs, trajectory.loss_mask)
    assert [column.itemsize for column in columns if isinstance(column, array)] == [4, 4, 1]
    assert np.shares_memory(np.asarray(trajectory.token_ids, np.int32), np.frombuffer(trajectory.token_ids, np.int32))


def test_json_holds_them_as_text_and_lists_are_read_as_well(make_trajectory: Callable[..., Trajectory]) -> None:
    trajectory = make_trajectory()
    plain = json.loads(json.dumps(to_plain(trajectory)))
    assert isinstance(plain["token_ids"], str)
    assert from_plain(Trajectory, plain) == trajectory
    lists = plain | {name: list(getattr(trajectory, name)) for name in ("token_ids", "logprobs", "loss_mask")}
    assert from_plain(Trajectory, lists) == trajectory


@pytest.mark.parametrize("damaged", ["AAA", "not base64!", "AAAA", [1, "x"], [2**40], 5, None])
def test_damage_is_an_error_that_names_the_field(make_trajectory: Callable[..., Trajectory], damaged: object) -> None:
    plain = to_plain(make_trajectory()) | {"token_ids": damaged}
    with pytest.raises(ValidationError, match="token_ids"):
        from_plain(Trajectory, plain)
