from dataclasses import replace

import pytest
from grading_builders import make_workspace, repair, trajectory

from gagar_mcore.credit import CreditParams, VerdictError
from gagar_mcore.grading.validate import validate
from gagar_mcore.records.types import Grade, Verdict

CLEAN = Grade(5, 5, 5, 5, 5)


@pytest.fixture
def group(tmp_path):
    return make_workspace(
        tmp_path,
        trajectory("good", repair()),
        trajectory("sloppy", repair(**{"odd:name__py": "x"})),
        trajectory("bad", reward=0.0),
    )


def check(group, **sloppy):
    validate(Verdict("test", {"good": CLEAN, "sloppy": replace(CLEAN, **sloppy)}), group, CreditParams())


@pytest.mark.parametrize(
    "citation",
    ["patch:util.py:0", "patch:util.py:2", "patch:util.py:5", "patch:odd:name.py:1", "turn:0", "turn:2", "test:util.scale[0]"],
)
def test_a_citation_that_resolves(group, citation):
    check(group, minimality=1, citations=[citation])


@pytest.mark.parametrize(
    "citation",
    [
        "patch:util.py:99",
        "patch:util.py:-1",
        "patch:util.py:",
        "patch:util.py",
        "patch:util.py:2.0",
        "patch:util.py:²",
        f"patch:util.py:{'9' * 5000}",
        "patch:other.py:1",
        "patch:",
        "turn:3",
        "turn:-1",
        "turn:x",
        f"turn:{'9' * 5000}",
        "test:other",
        "test:",
        "line:2",
        "",
    ],
)
def test_a_citation_of_nothing_makes_the_verdict_invalid(group, citation):
    with pytest.raises(VerdictError, match=r"^grades\.sloppy\.citations: .* does not exist"):
        check(group, minimality=1, citations=["turn:0", citation])


def test_a_citation_counts_for_its_own_trajectory(group):
    with pytest.raises(VerdictError, match="does not exist"):
        validate(
            Verdict("test", {"good": replace(CLEAN, citations=["patch:odd:name.py:1"]), "sloppy": CLEAN}), group, CreditParams()
        )


@pytest.mark.parametrize("negative", [{"approach": 2}, {"consistency": 1}, {"rewrite": True}, {"severe_process": True}])
def test_a_negative_judgement_needs_a_citation(group, negative):
    with pytest.raises(VerdictError, match="needs a citation"):
        check(group, **negative)
    check(group, **negative, citations=["turn:1"])


def test_a_middling_judgement_needs_none(group):
    check(group, approach=3)


@pytest.mark.parametrize("citations", [None, "turn:0", [1], ("turn:0",), ["turn:0"] * 65])
def test_citations_are_a_short_list_of_texts(group, citations):
    with pytest.raises(VerdictError, match=r"^grades\.sloppy\.citations: must be"):
        check(group, citations=citations)


def test_the_rules_of_credit_hold_too(group):
    with pytest.raises(VerdictError, match="'sloppy' is missing"):
        validate(Verdict("test", {"good": CLEAN}), group, CreditParams())
    with pytest.raises(VerdictError, match="'bad' is not a passing"):
        validate(Verdict("test", {"good": CLEAN, "sloppy": CLEAN, "bad": CLEAN}), group, CreditParams())
    with pytest.raises(VerdictError, match="must be a verdict, got dict"):
        validate({"grades": {}}, group, CreditParams())
