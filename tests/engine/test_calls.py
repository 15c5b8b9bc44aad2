import random
from dataclasses import replace

import pytest

from gagar_mcore.engine.calls import Calls
from gagar_mcore.engine.decoder import Decoder
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import GenerateRequest


@pytest.fixture(scope="module")
def policy(checkpoint):
    return Policy(checkpoint, version=0, rows=4, max_context=128)


def call_of(seed, count=4, new=16):
    rng = random.Random(seed)
    prompts = [[rng.randrange(5, 512) for _ in range(rng.randrange(5, 60))] for _ in range(count)]
    return [GenerateRequest(f"c{seed}-{i}", ids, new, 1.0, seed * 100 + i, ()) for i, ids in enumerate(prompts)]


def finish(calls):
    done = {}
    while calls.busy:
        done |= calls.step()[1]
    return done


def test_calls_that_overlap_share_the_batch(policy):
    calls = Calls(Decoder(policy), isolated=False)
    calls.add(0, call_of(0, count=2, new=12))
    calls.step()
    calls.add(1, call_of(1, count=2, new=2))
    over = []
    while calls.busy:
        over += calls.step()[1]
    assert over == [1, 0]


@pytest.mark.parametrize("count", [3, 7])
def test_isolated_answers_are_bit_equal_whatever_came_before(policy, count):
    """Seven requests exceed the four rows: they are admitted as rows fall free, in an order that is the call's own."""
    alone = Calls(Decoder(policy), isolated=True)
    alone.add(0, call_of(0, count))
    expected = finish(alone)[0]

    crowded = Calls(Decoder(policy), isolated=True)
    crowded.add(1, call_of(1, count=2, new=5))
    crowded.step()
    crowded.add(2, call_of(0, count))
    crowded.add(3, call_of(3, count=5))
    answers = finish(crowded)
    assert answers[2] == expected
    assert list(answers) == [1, 2, 3]


def test_an_isolated_turn_carries_no_cache(policy):
    """After its first turn, or first of all: a second turn gives the same bits."""
    calls = Calls(Decoder(policy), isolated=True)
    calls.add(0, call_of(0))
    answers = finish(calls)[0]
    turn = [
        replace(request, input_ids=[*request.input_ids, *answer.token_ids, 9, 9])
        for request, answer in zip(call_of(0), answers, strict=True)
    ]
    calls.add(1, turn)
    fresh = Calls(Decoder(policy), isolated=True)
    fresh.add(0, turn)
    assert finish(calls)[1] == finish(fresh)[0]


def test_a_cancelled_call_leaves_the_batch_without_an_answer(policy):
    for isolated in (False, True):
        calls = Calls(Decoder(policy), isolated)
        calls.add(0, call_of(0, count=2, new=50))
        calls.step()
        calls.add(1, call_of(1, count=2, new=3))
        calls.add(2, call_of(2, count=1, new=3))
        calls.cancel(0)
        calls.cancel(2)
        calls.cancel(99)
        assert list(finish(calls)) == [1]


def test_an_empty_call_is_answered(policy):
    for isolated in (False, True):
        calls = Calls(Decoder(policy), isolated)
        calls.add(0, [])
        assert finish(calls) == {0: []}
