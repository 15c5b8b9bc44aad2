from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gagar_mcore.viewer.html import Markup, element, join, text


def test_strings_are_escaped_and_markup_is_not():
    assert element("p", "a < b & ", element("b", "c"), 3, None) == "<p>a &lt; b &amp; <b>c</b>3</p>"


def test_attributes():
    assert element("meta", http_equiv="x", class_="a \"b'", open=True, hidden=False, id=None) == (
        '<meta http-equiv="x" class="a &quot;b&#x27;" open>'
    )


def test_concatenation_of_markup_and_text_is_not_trusted():
    assert join(Markup("<b>") + "<i>") == "&lt;b&gt;&lt;i&gt;"


@given(st.text(st.characters()))
def test_no_text_opens_or_closes_anything(content):
    seen = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append((tag, [name for name, _ in attrs]))

        def handle_endtag(self, tag):
            seen.append(tag)

        def handle_comment(self, data):
            seen.append(data)

    parser = Parser()
    parser.feed(element("p", content, title=content))
    parser.close()
    assert seen == [("p", ["title"]), "p"]
    text(content).encode()
