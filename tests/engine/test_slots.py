from gagar_mcore.engine.slots import SlotPool


def test_a_session_gets_its_row_back():
    pool = SlotPool(2)
    slot = pool.acquire("a")
    slot.cached = [1, 2]
    pool.release("a", slot)
    assert pool.acquire("a") is slot


def test_rows_are_given_in_order_and_run_out():
    pool = SlotPool(2)
    assert [pool.acquire(s).row for s in "ab"] == [0, 1]
    assert pool.acquire("c") is None


def test_the_row_idle_for_longest_is_given_away_empty():
    pool = SlotPool(2)
    slots = {session: pool.acquire(session) for session in "ab"}
    for session, slot in slots.items():
        slot.cached = [1]
        pool.release(session, slot)
    pool.release("a", pool.acquire("a"))
    newcomer = pool.acquire("c")
    assert (newcomer.row, newcomer.cached) == (slots["b"].row, [])
    assert pool.acquire("a") is slots["a"]
    assert pool.acquire("b") is None


def test_a_forgotten_session_frees_its_row():
    pool = SlotPool(1)
    slot = pool.acquire("a")
    slot.cached = [1]
    pool.release("a", slot)
    pool.forget("a")
    pool.forget("never seen")
    assert pool.acquire("a").cached == []
