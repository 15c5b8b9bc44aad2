"""What is not read again has to come out as if it were."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.agent.proxy.anthropic_api import Anthropic, Counting
from gagar_mcore.agent.proxy.api import Reader
from gagar_mcore.agent.proxy.conversation import Refused
from gagar_mcore.agent.proxy.heard import Heard
from gagar_mcore.agent.proxy.openai_api import OpenAi

APIS: list[Reader] = [OpenAi(), Anthropic(), Counting()]
texts = st.text(max_size=6) | st.sampled_from(['"messages": [', "]", "}", ",", "\\", "é", "\ud7ff"])
messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts})
rest = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "messages"]), "max_tokens": st.integers(1, 9)},
    optional={"system": texts, "metadata": st.fixed_dictionaries({"messages": st.lists(messages, max_size=1)})},
)
styles = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 1]),
        "separators": st.sampled_from([(",", ":"), (", ", ": ")]),
    }
)


def what(api: Reader, read: Any, body: bytes) -> Any:
    try:
        return read(api, body)
    except Refused as refused:
        return str(refused)


def plainly(api: Reader, body: bytes) -> Any:
    return api.read(body)


@settings(max_examples=40)
@given(data=st.data())
def test_a_conversation_is_read_as_if_nothing_of_it_were_known(data: st.DataObject) -> None:
    """One that grows, is edited and told again in other words of JSON, beside another."""
    heard, told = Heard(), [data.draw(st.lists(messages, max_size=3)) for _ in range(2)]
    fields, style = data.draw(rest), data.draw(styles)
    for _ in range(4):
        which = data.draw(st.integers(0, 1))
        told[which] = told[which] + data.draw(st.lists(messages, max_size=2))
        if told[which] and data.draw(st.integers(0, 4)) == 0:
            told[which] = [*told[which][:-1], data.draw(messages)]
        fields = data.draw(st.just(fields) | rest)
        in_order = list(fields.items())
        in_order.insert(data.draw(st.integers(0, len(in_order))), ("messages", told[which]))
        body = json.dumps(dict(in_order), **data.draw(st.just(style) | styles)).encode()
        api = data.draw(st.sampled_from(APIS))
        assert what(api, heard.read, body) == what(api, plainly, body)


HELLO = b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}'


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "more",
    [
        b', {"role": "user", "content": "b"}], "messages": [{"role": "user", "content": "c"}]}',
        b', {"role": "user", "content": "b"}], "mess\\u0061ges": []}',
        b",]}",
        b", ]}",
        b", 1]}",
        b"]} ",
        b", ",
        b', {"role": "user", "content": "b"}]} x',
    ],
)
def test_what_goes_on_in_an_odd_way_is_read_whole(api: Reader, more: bytes) -> None:
    heard = Heard()
    heard.read(api, HELLO + b"]}")
    assert what(api, heard.read, HELLO + more) == what(api, plainly, HELLO + more)


@pytest.mark.parametrize("api", APIS)
def test_what_was_told_before_is_not_read_again(api: Reader) -> None:
    heard = Heard()
    told = [{"role": "user", "content": f"é{n}"} for n in range(5)]
    bodies = [json.dumps({"model": "m", "messages": told[:n], "max_tokens": 5, "system": "s"}).encode() for n in range(1, 6)]
    for before, after in pairwise([heard.read(api, body).told for body in bodies]):
        assert len(after) == len(before) + 1 and all(map(lambda a, b: a is b, before, after))
