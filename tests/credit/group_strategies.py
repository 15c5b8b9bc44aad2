"""Groups of every kind for property tests."""

from exact import Length, Member
from hypothesis import strategies as st

from gagar_mcore.credit import CreditParams

TINY = [5e-324, 1e-310, 1e-300, 1e-12]
FACTOR = st.floats(0, 1, exclude_min=True) | st.sampled_from([*TINY, 0.2, 0.4, 0.85, 1.0])
PASSING = st.just(1.0) | st.floats(0, 1, exclude_min=True) | st.sampled_from([*TINY, 1 - 2**-53])
LENGTH = st.builds(
    Length,
    st.integers(0, 200) | st.sampled_from([0, 1e-300, 1e300]),
    st.integers(0, 10**6) | st.sampled_from([0, 5e-324]),
    st.integers(0, 10**6) | st.floats(0, 1e308),
)
PARAMS = st.builds(
    CreditParams,
    method=st.sampled_from(["gagar", "gagar", "grpo", "downweight_only"]),
    cap=st.none() | st.sampled_from([1.0, 1.5]) | st.floats(1, 1e6),
    min_valid=st.integers(2, 4),
    length_penalty=st.booleans(),
    length_pass_rate=st.sampled_from([0.0, 0.5]) | st.floats(0, 1),
    length_percentile=st.sampled_from([0.0, 30.0, 100.0]) | st.floats(0, 100),
    length_weight=st.sampled_from([0.2]) | st.floats(0, 1),
    length_gamma=st.sampled_from([1.5, 1 + 2**-52]) | st.floats(1, 1e6, exclude_min=True),
    group_size_correction=st.booleans(),
)


@st.composite
def groups(draw, passing=PASSING, max_passing=12, hacked=True, invalid=True):
    """(members in any order, factors of the passing that are no hacks, hacks)."""
    rewards = draw(st.lists(passing, min_size=1, max_size=max_passing)) + [0.0] * draw(st.integers(1, 8))
    lost = [0.0] * draw(st.integers(0, 3)) if invalid else []
    members = [Member(f"m{i}", r, i < len(rewards), draw(LENGTH)) for i, r in enumerate(rewards + lost)]
    ids = [m.id for m in members if m.reward > 0]
    hacks = draw(st.lists(st.sampled_from(ids), unique=True, max_size=3)) if hacked else []
    factors = {id: draw(FACTOR) for id in ids if id not in hacks}
    return draw(st.permutations(members)), factors, hacks
