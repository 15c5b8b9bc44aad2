import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar_sandbox.inside.frames import pack, unpack


@given(st.lists(st.binary(max_size=300)))
def test_what_is_packed_is_unpacked(fields: list[bytes]):
    frame = pack(*fields)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert unpack(frame[4:]) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_refused(body: bytes):
    try:
        fields = unpack(body)
    except ValueError:
        return
    assert pack(*fields)[4:] == body


@pytest.mark.parametrize("body", [b"\0", b"\0\0\0\1", b"\xff\xff\xff\xffx", b"\0\0\0\0\0"])
def test_a_length_that_points_outside_is_refused(body: bytes):
    with pytest.raises(ValueError, match="runs past"):
        unpack(body)
