import pytest

from gagar_mcore.grading.source import Line, enclosing, read_lines


def test_python_lines_are_code_and_comment():
    lines = read_lines('x = "# no"  # yes\n\n# alone\nf(\n    1)\n', "a.py")
    assert lines == [
        Line(("x", "=", '"# no"'), "yes"),
        Line((), None, False),
        Line((), "alone", False),
        Line(("f", "(")),
        Line(("1", ")"), None, False),
        Line((), None, False),
    ]
    assert lines[0].words == ("x", "=")


def test_a_string_that_stands_alone_is_a_comment():
    lines = read_lines('def f():\n    """One\n    two."""\n    x = """a\n    print(1)"""\n', "a.py")
    assert [bool(line.code) for line in lines] == [True, False, False, True, True, False]
    assert lines[1].comment == '"""One'
    assert "print" not in lines[4].words


@pytest.mark.parametrize(
    ("path", "text", "comment"),
    [
        ("a.js", "f(x) // why", "why"),
        ("a.go", "// why", "why"),
        ("a.sh", "x=1 # why", "why"),
        ("a.sql", "select 1 -- why", "why"),
        ("a.js", 'f("a // b")', None),
        ("a.txt", "# heading", None),
        ("Makefile", "# why", None),
        ("a.py", "x = (  # why", "why"),
    ],
)
def test_other_languages_are_read_line_by_line(path, text, comment):
    assert read_lines(text, path)[0].comment == comment


@pytest.mark.parametrize(
    "text",
    ["(" * 100_000, "-" * 100_000 + "1", "'" * 100_001, '"""' + "x\n" * 100, "\0\x0c\u2028\udcff", "if x:\n" * 150, " x\ny\n  z"],
)
def test_hostile_python_keeps_its_line_count(text):
    assert len(read_lines(text, "a.py")) == len(text.split("\n"))


def test_enclosing_function():
    text = "import a\nclass C:\n    x = 1\n\n    def f(self):\n        if a:\n            b\n\n        c\n\ny = 2"
    lines = text.split("\n")
    assert [enclosing(lines, n) for n in range(1, 12)] == ["", "C", "C", "C", "C.f", "C.f", "C.f", "C.f", "C.f", "C.f", ""]
    assert enclosing([], 1) == ""
