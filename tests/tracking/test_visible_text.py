import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.tracking.text import clip, visible


def test_plain_text_stays():
    assert visible("def f(x):\n\treturn 'é 漢 🙂'") == "def f(x):\n\treturn 'é 漢 🙂'"


def test_what_hides_is_named():
    assert visible("\x1b[31mred\x00\x7f") == "␛[31mred␀␡"
    assert visible("a\udcffb") == "a\\xffb"
    assert visible("a\ud800b") == "a⟨U+D800⟩b"
    assert visible("user\u202etxt.exe\u2066") == "user⟨U+202E⟩txt.exe⟨U+2066⟩"
    assert visible("one\u2028two\x85\r\n") == "one⟨U+2028⟩two⟨U+0085⟩␍\n"


@given(st.text(st.characters()))
def test_the_result_is_utf8_without_hidden_characters(text):
    shown = visible(text)
    shown.encode()
    assert not [c for c in shown if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_clip_says_how_much_is_gone():
    assert clip("abc", 3) == "abc"
    assert clip("x" * 2010, 10) == "x" * 10 + "… [2,000 more characters]"
