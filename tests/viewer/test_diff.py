from example_runs import PATCH

from gagar_mcore.viewer.diff import draw_diff, with_kinds


def test_lines_have_their_kinds():
    kinds = [kind for kind, _ in with_kinds(PATCH.splitlines())]
    assert kinds == ["file"] * 4 + ["hunk"] + ["same"] * 2 + ["removed", "added"] + ["same"] * 3


def test_a_change_that_looks_like_a_header_stays_a_change():
    lines = [
        "diff --git a/x b/x",
        "--- a/x",
        "+++ b/x",
        "@@ -1 +1 @@",
        "--- a/secret",
        "+++ b/secret",
        "diff --git a/y b/y",
        "--- a/y",
    ]
    assert [kind for kind, _ in with_kinds(lines)] == ["file"] * 3 + ["hunk", "removed", "added", "file", "file"]


def test_nothing_is_left_out_of_a_short_patch():
    assert "left out" not in draw_diff(PATCH, max_lines=12, max_line=80)
    assert "1 more lines are left out" in draw_diff(PATCH, max_lines=11, max_line=80)
    assert "left out" not in draw_diff(PATCH.rstrip("\n"), max_lines=12, max_line=80)


def test_an_empty_patch_says_so():
    assert "no change" in draw_diff(" \n", 10, 10)
