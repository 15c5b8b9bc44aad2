import subprocess

import pytest
from grading_builders import BASE, FIXED, file_diff, repair
from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.grading.patch import Block, PatchError, parse_patch, patched

LINE = st.sampled_from(
    ["", "a", "b", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "diff --git a/x b/x", "-", "+", "\\", " c", "\x0c\x1cd"]
)


def git_diff(root):
    command = "git diff --no-index --no-prefix --binary --no-renames a/ b/"
    return subprocess.run(command.split(), cwd=root, capture_output=True).stdout.decode(errors="surrogateescape")


def test_a_replaced_line():
    [file] = parse_patch(repair())
    assert (file.path, file.status, file.size, file.first_line) == ("util.py", "modified", 1, 2)
    assert file.blocks == [Block(2, 2, ("    out = x + y",), ("    out = x * y",))]
    assert file.shown == [range(1, 7)]


def test_added_and_deleted_files():
    added, deleted = parse_patch(file_diff("tmp.py", None, "x\ny\n") + file_diff("gone.py", "x\n", None))
    assert (added.path, added.status, added.blocks) == ("tmp.py", "added", [Block(1, 1, (), ("x", "y"))])
    assert (deleted.path, deleted.status, deleted.blocks) == ("gone.py", "deleted", [Block(1, 1, ("x",), ())])


@given(st.lists(LINE, max_size=30), st.lists(LINE, max_size=30))
def test_what_is_read_rebuilds_the_file(before, after):
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    [file] = parse_patch(file_diff("x.py", old, new))
    assert patched(old, file) == new


def test_everything_that_git_writes_is_read(tmp_path):
    for side in "ab":
        (tmp_path / side / "deep").mkdir(parents=True)
    (tmp_path / "a/u.py").write_text("x\ny\n")
    (tmp_path / "b/u.py").write_text("x\nz")
    (tmp_path / "b/u.py").chmod(0o755)
    (tmp_path / "a/gone").write_text("gone\n")
    (tmp_path / "b/bin").write_bytes(b"\0\1\2")
    (tmp_path / "b/link").symlink_to("/etc/passwd")
    (tmp_path / "b/raw").write_bytes(b"\xff\n")
    for name in ("empty", "em b", "deep/two\nlines", 'é"q', "with space"):
        (tmp_path / "b" / name).write_text("" if name.startswith("em") else "1\n")
    files = {file.path: file for file in parse_patch(git_diff(tmp_path))}
    assert set(files) == {"u.py", "gone", "bin", "link", "raw", "empty", "em b", "deep/two\nlines", 'é"q', "with space"}
    assert files["u.py"].mode and files["u.py"].blocks == [Block(2, 2, ("y",), ("z",))]
    assert files["bin"].binary and files["link"].link and files["gone"].status == "deleted"
    assert files["raw"].blocks[0].added == ("\udcff",)
    assert files["empty"].status == "added" and files["empty"].blocks == []


@pytest.mark.parametrize(
    "text",
    [
        "no patch: it is larger than 1048576 bytes\n",
        "--- a/x\n+++ b/x\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n a\n+b\n-c\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n?b\n",
    ],
)
def test_what_is_no_diff_is_refused(text):
    with pytest.raises(PatchError):
        parse_patch(text)


@pytest.mark.parametrize("name", ['"a/\\9"', '"\\²"', '"\\8\\777"', '"\\"', '"'])
def test_a_name_in_broken_quotes_is_still_a_name(name):
    assert len(parse_patch(f"diff --git {name} {name}\n--- {name}\n")) == 1


def test_an_empty_patch_has_no_files():
    assert parse_patch("") == []


def test_a_patch_of_another_text_does_not_apply():
    [file] = parse_patch(repair())
    assert patched(BASE, file) == FIXED
    assert patched(BASE.replace("x + y", "x - y"), file) is None
