import asyncio
import os
import random
import signal
from collections import Counter
from functools import partial

import pytest

from gagar_mcore.config.rollout import EngineSection
from gagar_mcore.engine.embedded import start_embedded
from gagar_mcore.engine.fleet import Fleet
from gagar_mcore.engine.partial import EngineLost
from gagar_mcore.engine.protocol import EngineError, GenerateRequest, Generation
from gagar_mcore.records.types import WeightSpan

SECTION = EngineSection(max_batch=4, threads=1, deadline_s=60.0)


def request(seed=1, ids=(5, 6, 7), new=40, session=None, stop=()):
    return GenerateRequest(session or f"s{seed}", list(ids), new, 1.0, seed, stop)


def supervise(checkpoint, tmp_path, restarts, body):
    """Run `body(engine, started)` on one real engine; `started` lists its processes in order of their start."""

    async def main():
        started = []

        async def start(weights, version):
            started.append(
                await start_embedded(weights, version, SECTION, tmp_path / "e.log", max_context=64, deterministic=True)
            )
            return started[-1]

        engine = Fleet(lambda: {"one": start}, checkpoint, 3, room=8, patience_s=60.0, restarts=restarts)
        await engine.start()
        try:
            return await body(engine, started)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


def kill(engine):
    os.kill(engine.pid, signal.SIGKILL)


def test_calls_lost_with_the_process_are_answered_the_same_by_the_next(checkpoint, tmp_path):
    async def body(engine, started):
        calm = [await engine.generate([request(seed)]) for seed in (1, 2)]
        lost = asyncio.gather(*(engine.generate([request(seed)]) for seed in (1, 2)))
        await asyncio.sleep(0.01)
        kill(started[0])
        again = await lost
        await engine.end_session("s1")
        return calm, again, len(started)

    calm, again, started = supervise(checkpoint, tmp_path, 3, body)
    assert again == calm
    assert started == 2


def test_a_restarted_engine_holds_the_weights_that_were_being_loaded(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        await engine.release_memory()  # a dead engine holds none
        await engine.load_weights(checkpoint, 9)
        [generation] = await engine.generate([request()])
        return {span.version for span in generation.weight_spans}

    assert supervise(checkpoint, tmp_path, 1, body) == {9}


def test_a_refused_call_is_no_reason_to_start_again(checkpoint, tmp_path):
    async def body(engine, started):
        with pytest.raises(EngineError, match="max_new_tokens"):
            await engine.generate([request(new=0)])
        return len(started)

    assert supervise(checkpoint, tmp_path, 3, body) == 1


def test_an_engine_that_keeps_dying_is_given_up(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        with pytest.raises(EngineError, match="ended with code -9"):
            await engine.generate([request()])
        await engine.end_session("s1")

    supervise(checkpoint, tmp_path, 0, body)


def test_a_caller_that_gives_up_leaves_the_restart_to_the_others(checkpoint, tmp_path):
    async def body(engine, started):
        kill(started[0])
        impatient = asyncio.create_task(engine.generate([request(1)]))
        patient = asyncio.create_task(engine.generate([request(2)]))
        await asyncio.sleep(0.5)
        impatient.cancel()
        [generation] = await patient
        return len(generation.token_ids), impatient.cancelled(), len(started)

    assert supervise(checkpoint, tmp_path, 1, body) == (40, True, 2)


def test_a_closed_engine_is_not_started_again(checkpoint, tmp_path):
    async def body(engine, started):
        lost = asyncio.create_task(engine.generate([request()]))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await lost
        return len(started)

    assert supervise(checkpoint, tmp_path, 3, body) == 1


class Counting:
    """Stands in for a server: says 1, 2, 3 ... after the last token, one every `pause` seconds, and dies when it is told to. The
    real ones are in `test_sglang_fleet.py`; here the order of events has to be exact."""

    def __init__(self, name, version, pause=0.001):
        self.name, self.version, self.pause = name, version, pause
        self.alive = True
        self.asked, self.ended, self.at_work, self.most = [], [], 0, 0
        self.dying = asyncio.Event()

    async def generate(self, requests):
        self.at_work += len(requests)
        self.most = max(self.most, self.at_work)
        self.asked += requests
        said = [[] for _ in requests]
        try:
            for number in range(max(r.max_new_tokens for r in requests)):
                if self.dying.is_set():
                    self.alive = False
                if not self.alive:
                    raise EngineLost(
                        f"{self.name} is dead", [self._answer(r, s, "abort") for r, s in zip(requests, said, strict=True)]
                    )
                for asked, tokens in zip(requests, said, strict=True):
                    if number < asked.max_new_tokens:
                        tokens.append((asked.input_ids + tokens)[-1] + 1)
                await asyncio.sleep(self.pause)
            return [self._answer(r, s, "length") for r, s in zip(requests, said, strict=True)]
        finally:
            self.at_work -= len(requests)

    def _answer(self, asked, tokens, reason):
        return Generation(tokens, [0.0] * len(tokens), [WeightSpan(self.version, 0, len(tokens))] if tokens else [], reason)

    async def end_session(self, session_id):
        self.ended.append(session_id)

    async def load_weights(self, directory, version):
        if self.dying.is_set():
            self.alive = False
            raise EngineError(f"{self.name} died of new weights")
        await asyncio.sleep(self.pause)
        self.version = version

    async def release_memory(self): ...

    async def close(self):
        self.alive = False


def run_fleet(body, names=("a", "b"), room=4, restarts=3, patience_s=5.0, failing=()):
    """`body(fleet, engines)`; engines: by name, the latest of that name last. Those named in `failing` do not start."""

    async def main():
        engines = {name: [] for name in names}
        found = list(names)

        async def start(name, weights, version):
            if name in failing:
                raise EngineError(f"{name} does not start")
            engines.setdefault(name, []).append(Counting(name, version))
            return engines[name][-1]

        fleet = Fleet(lambda: {name: partial(start, name) for name in found}, "w0", 0, room, patience_s, restarts)
        await fleet.start()
        fleet.found = found
        try:
            return await body(fleet, engines)
        finally:
            await fleet.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_sessions_are_spread_and_stay_where_they_are():
    async def body(fleet, engines):
        for _ in range(3):
            await asyncio.gather(*(fleet.generate([request(session=f"s{i}", new=2)]) for i in range(4)))
        return [Counter(r.session_id for r in engines[name][0].asked) for name in "ab"]

    a, b = run_fleet(body)
    assert len(a) == len(b) == 2 and not a.keys() & b.keys()
    assert set(a.values()) | set(b.values()) == {3}


def test_calls_beyond_the_room_wait_in_order_and_all_are_answered():
    async def body(fleet, engines):
        answers = await asyncio.gather(*(fleet.generate([request(session=f"s{i}", ids=(i,), new=3)]) for i in range(50)))
        begun = [r.input_ids[0] for r in engines["a"][0].asked]
        return [answer.token_ids for [answer] in answers], engines["a"][0].most, begun

    answers, most, begun = run_fleet(body, names="a", room=4)
    assert answers == [[i + 1, i + 2, i + 3] for i in range(50)]
    assert most == 4
    assert begun == sorted(begun)


def test_waiting_calls_that_are_cancelled_leave_their_place_to_others():
    async def body(fleet, engines):
        calls = [asyncio.create_task(fleet.generate([request(session=f"s{i}", new=20)])) for i in range(20)]
        await asyncio.sleep(0.005)
        for call in calls[::2]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [type(answer) for answer in done]

    kinds = run_fleet(body, names="a", room=2)
    assert kinds[1::2] == [list] * 10


def test_a_session_that_has_moved_is_over_with_all_that_it_was_with():
    """They remember which of its tokens they have told the experts of."""

    async def body(fleet, engines):
        long = asyncio.create_task(fleet.generate([request(session="x", new=10_000)]))
        await asyncio.sleep(0.01)
        await fleet.generate([request(session="x", new=2)])
        long.cancel()
        await fleet.end_session("x")
        return [(len(engine.asked), engine.ended) for [engine] in engines.values()]

    assert run_fleet(body, room=1) == [(1, ["x"])] * 2


def test_nothing_is_left_of_sessions_that_are_cancelled_wherever_they_are():
    draw = random.Random(3)

    async def body(fleet, engines):
        async def session(name):
            try:
                async with asyncio.timeout(draw.random() * 0.2):
                    for _ in range(9):
                        await fleet.generate([request(session=name, new=5)])
            finally:
                await fleet.end_session(name)

        await asyncio.gather(*(session(f"s{i}") for i in range(2000)), return_exceptions=True)
        await fleet.generate([request(session="last", new=2)])
        await fleet.end_session("last")
        members = fleet._members.values()
        held = [(member.at_work, member.sessions, member.engine.at_work) for member in members]
        return held, fleet._homes, len(fleet._waiting)

    assert run_fleet(body, room=3) == ([(0, 0, 0)] * 2, {}, 0)


def test_a_call_that_has_waited_for_room_still_waits_for_the_engine_to_come_back():
    """As long as others, from when the engine was lost on."""

    async def main():
        engines = []

        async def start(weights, version):
            await asyncio.sleep(0.3 * len(engines))
            engines.append(Counting("a", version))
            return engines[-1]

        fleet = Fleet(lambda: {"a": start}, "w0", 0, room=1, patience_s=1.0)
        await fleet.start()
        long, short = (asyncio.create_task(fleet.generate([request(session=f"s{new}", new=new)])) for new in (10_000, 2))
        await asyncio.sleep(0.9)
        engines[0].dying.set()
        try:
            return await short
        finally:
            long.cancel()
            await fleet.close()

    assert len(asyncio.run(asyncio.wait_for(main(), 60))[0].token_ids) == 2


def test_another_goes_on_from_the_last_token_of_one_that_dies():
    async def body(fleet, engines):
        call = asyncio.create_task(fleet.generate([request(session="s", ids=(0,), new=50)]))
        await asyncio.sleep(0.02)
        [dying] = [engine for [engine] in engines.values() if engine.asked]
        dying.dying.set()
        [answer] = await call
        [rest] = [engine for [engine, *_] in engines.values() if engine is not dying]
        return answer, rest.asked[0]

    answer, asked = run_fleet(body)
    assert answer.token_ids == list(range(1, 51)) and answer.finish_reason == "length"
    assert answer.weight_spans == [WeightSpan(0, 0, 50)]
    assert 0 < len(asked.input_ids) - 1 == 50 - asked.max_new_tokens
    assert asked.input_ids == list(range(len(asked.input_ids)))


def test_one_that_dies_of_new_weights_comes_back_with_them_and_the_others_have_them_too():
    async def body(fleet, engines):
        engines["a"][0].dying.set()
        await fleet.load_weights("w1", 1)
        while fleet.alive < 2:
            await asyncio.sleep(0.01)
        return [engines[name][-1].version for name in "ab"], len(engines["a"])

    assert run_fleet(body) == ([1, 1], 2)


def test_one_that_does_not_start_is_left_out_and_reported_when_none_is_left():
    async def body(fleet, engines):
        await asyncio.gather(*(fleet.generate([request(session=f"s{i}", new=2)]) for i in range(4)))
        asked = len(engines["a"][0].asked)
        engines["a"][0].dying.set()
        with pytest.raises(EngineError, match="a is dead"):
            await fleet.generate([request(session="s", new=5)])
        return asked

    assert run_fleet(body, failing="b", restarts=0) == 4
    with pytest.raises(EngineError, match="a does not start"):
        run_fleet(body, names="a", failing="a")


def test_a_call_waits_for_a_member_no_longer_than_it_may():
    async def body(fleet, engines):
        engines["a"][0].dying.set()
        with pytest.raises(EngineError, match=r"no engine within 0\.2 s: a (is dead|does not start)"):
            await fleet.generate([request(session="s", new=5)])

    failing = []

    async def dies(fleet, engines):
        failing.append("a")
        await body(fleet, engines)

    run_fleet(dies, names="a", failing=failing, patience_s=0.2, restarts=10)


def test_where_the_only_one_is_gone_calls_and_weights_wait_for_another(monkeypatch):
    monkeypatch.setattr("gagar_mcore.engine.fleet.LOOK_S", 0.02)
    failing = []

    async def body(fleet, engines):
        lose(fleet, engines, failing)
        call = asyncio.create_task(fleet.generate([request(session="s", ids=(0,), new=3)]))
        while fleet._members:
            await asyncio.sleep(0.01)
        loading = asyncio.create_task(fleet.load_weights("w1", 1))
        await asyncio.sleep(0.1)
        waited = not call.done() and not loading.done()
        failing.clear()
        fleet.found.append("a")
        await loading
        return waited, (await call)[0]

    waited, answer = run_fleet(body, names="a", failing=failing)
    assert waited and answer.token_ids == [1, 2, 3] and answer.weight_spans[0].version == 1


def test_where_none_comes_the_wait_has_an_end_and_says_where_one_is_looked_for(monkeypatch):
    monkeypatch.setattr("gagar_mcore.engine.fleet.LOOK_S", 0.02)
    failing = []

    async def body(fleet, engines):
        lose(fleet, engines, failing)
        for waiting in (fleet.generate([request(session="s", new=5)]), fleet.load_weights("w1", 1)):
            with pytest.raises(EngineError, match=r"no engine within 0\.3 s: .*engine\.server\.attach"):
                await waiting

    run_fleet(body, names="a", failing=failing, patience_s=0.3)
    with pytest.raises(EngineError, match=r"no engine is found; .*engine\.server\.attach"):
        run_fleet(body, names="")


def lose(fleet, engines, failing):
    """The only engine, and what tells of it."""
    failing.append("a")
    fleet.found.clear()
    engines["a"][0].dying.set()


def test_one_that_comes_later_is_found_and_one_that_is_gone_forgotten(monkeypatch):
    monkeypatch.setattr("gagar_mcore.engine.fleet.LOOK_S", 0.02)

    async def body(fleet, engines):
        await fleet.load_weights("w1", 1)
        fleet.found.append("late")
        while fleet.alive < 2:
            await asyncio.sleep(0.01)
        version = engines["late"][0].version
        fleet.found.remove("a")
        engines["a"][0].dying.set()
        answers = await asyncio.gather(*(fleet.generate([request(session=f"s{i}", ids=(0,), new=3)]) for i in range(4)))
        await asyncio.sleep(0.1)
        return version, [answer.token_ids for [answer] in answers]

    version, answers = run_fleet(body, names="a", restarts=1)
    assert version == 1
    assert answers == [[1, 2, 3]] * 4
