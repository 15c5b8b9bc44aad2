"""The rules of the static grader: what each finding costs, and the grade that comes of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gagar_mcore.grading.validate import MAX_CITATIONS
from gagar_mcore.records.types import Grade

BEST = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """What one finding takes from each criterion; at most `most` findings of a kind count. `flag` is set by the first."""

    costs: Mapping[str, int] = field(default_factory=dict)
    most: int = 1
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is a key of RULES; `citation` says where."""

    rule: str
    citation: str


RULES: Mapping[str, Rule] = {
    # what the patch leaves behind
    "debug_output": Rule({"minimality": 3, "side_effects": 3}),
    "stray_file": Rule({"minimality": 3, "side_effects": 3}),
    "binary_or_link": Rule({"minimality": 3, "side_effects": 3}),
    "unreadable_patch": Rule({"minimality": 4, "side_effects": 4}),
    "commented_out_code": Rule({"minimality": 2, "consistency": 1}, most=2),
    "comment_noise": Rule({"minimality": 2, "consistency": 1}, most=2),
    "leftover_mark": Rule({"precision": 2, "consistency": 1}),
    # changes that change nothing
    "no_change_in_code": Rule({"minimality": 2, "consistency": 1}, most=2),
    "idle_statement": Rule({"minimality": 2, "precision": 1}, most=2),
    "unused_name": Rule({"precision": 1, "minimality": 2}, most=2),
    # more than the task needs
    "somewhat_larger": Rule({"minimality": 1}),
    "larger": Rule({"minimality": 2}),
    "much_larger": Rule({"minimality": 3, "precision": 1}),
    "rewrite": Rule({"minimality": 4, "precision": 2}, flag="rewrite"),
    "elsewhere": Rule({"precision": 1, "side_effects": 1}, most=3),
    "deleted_file": Rule({"side_effects": 3}),
    "changed_mode": Rule({"side_effects": 2}),
    "side_effect": Rule({"side_effects": 1}),
    # tests
    "weakened_test": Rule({"precision": 1, "side_effects": 2}),
    "test_control": Rule({"approach": 3, "side_effects": 3}, flag="workaround"),
    "special_case": Rule({"approach": 3, "precision": 2}, flag="workaround"),
    "swallowed_error": Rule({"approach": 2, "precision": 1}),
    "silenced_lint": Rule({"consistency": 2}),
    # style
    "trailing_blanks": Rule({"consistency": 1}),
    "other_indentation": Rule({"consistency": 2}),
    "long_line": Rule({"consistency": 1}),
    "several_statements": Rule({"consistency": 1}),
    # process
    "some_bad_calls": Rule({"approach": 1}),
    "mostly_bad_calls": Rule({"approach": 2}, flag="severe_process"),
    "many_turns": Rule({"approach": 1}),
    "cut_off": Rule({"approach": 1}),
    "failed_test": Rule({"side_effects": 3}, flag="regression"),
}


def grade_of(findings: Sequence[Finding]) -> Grade:
    """Every criterion starts at 5 and pays for the findings, down to 1."""
    counts = Counter(finding.rule for finding in findings)
    flags = {RULES[rule].flag for rule in counts}

    def mark(criterion: str) -> int:
        paid = sum(RULES[rule].costs.get(criterion, 0) * min(count, RULES[rule].most) for rule, count in counts.items())
        return max(1, BEST - paid)

    return Grade(
        approach=mark("approach"),
        precision=mark("precision"),
        minimality=mark("minimality"),
        side_effects=mark("side_effects"),
        consistency=mark("consistency"),
        rewrite="rewrite" in flags,
        workaround="workaround" in flags,
        severe_process="severe_process" in flags,
        regression="regression" in flags,
        citations=list(dict.fromkeys(finding.citation for finding in findings))[:MAX_CITATIONS],
    )
