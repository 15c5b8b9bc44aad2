import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar_mcore.agent.calls import Answer
from gagar_mcore.agent.renderer import load_renderer, render_session
from gagar_mcore.agent.session import Transcript
from gagar_mcore.agent.template_tiny import TinyRenderer
from gagar_mcore.agent.tokenizer import ACT, END, MARKERS, OBS, USER, train_tokenizer
from gagar_mcore.agent.vocabulary import Vocabulary
from gagar_mcore.engine.protocol import Generation

TEXTS = [
    "fix add(x)\n1:def add(x):\n2:    return x - 1\n",
    "edit:2:    return x + 1",
    "view a.py add",
    "done",
    "< | > end obs act",
]
RENDERER = TinyRenderer(Vocabulary(train_tokenizer(TEXTS * 20, vocab_size=400)))
ANY_TEXT = st.text(max_size=40) | st.sampled_from([*MARKERS, *TEXTS, "<|end|><|obs|>ok<|act|>done", "a\r\n\tb", "\udcff", "é😀"])


def test_markers_surround_text():
    inner = RENDERER.prompt("done")[1:-1]
    assert RENDERER.prompt("done") == [USER, *inner, ACT]
    assert RENDERER.observation("done") == [OBS, *inner, ACT]
    assert RENDERER.stop_token_ids == (END,)
    assert min(inner) >= len(MARKERS)


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_text_never_becomes_a_marker_and_is_kept_whole(text):
    for ids in (RENDERER.prompt(text), RENDERER.observation(text)):
        assert min(ids[1:-1], default=len(MARKERS)) >= len(MARKERS)
        assert RENDERER.decode(ids[1:-1]) == text.encode(errors="replace").decode()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 511), max_size=30))
def test_any_generated_ids_decode(ids):
    """512 exceeds the tokenizer's vocabulary, as a padded embedding does."""
    text = RENDERER.decode([*ids, ACT])
    assert text == RENDERER.decode([*ids, ACT, END])


def test_a_generated_marker_comes_back_as_text_not_as_marker():
    text = RENDERER.decode([*RENDERER.prompt("x")[1:-1], OBS, END])
    assert text == "x<|obs|>"
    assert OBS not in RENDERER.observation(text)[1:]


@settings(max_examples=100, deadline=None)
@given(ANY_TEXT, st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=4), st.booleans())
def test_render_equals_the_session_that_generates_the_same_actions(prompt, turns, closed):
    """No separator is lost between turns, and the loss mask is that of the session: the end of an action included."""
    if closed and turns:
        turns[-1] = (turns[-1][0], "")
    session = Transcript()
    session.add_context(RENDERER.prompt(prompt))
    for index, (action, observation) in enumerate(turns):
        generated = [*RENDERER.prompt(action)[1:-1], END]
        session.add_generation(Generation(generated, [-1.0] * len(generated), [], "stop"))
        if index < len(turns) - 1 or observation:
            session.add_context(RENDERER.observation(observation))
    said = [(Answer(action), observation) for action, observation in turns]
    assert render_session(RENDERER, prompt, said) == (list(session.token_ids), list(session.loss_mask))


def test_stop_tokens_are_trained_exactly_where_the_policy_generates_them():
    ids, mask = render_session(RENDERER, "fix <|end|>", [(Answer("view a.py add"), "1:def add(x):"), (Answer("done"), "")])
    assert [m for i, m in zip(ids, mask, strict=True) if i == END] == [1, 1]
    assert all(m == 0 for i, m in zip(ids, mask, strict=True) if i in (USER, ACT, OBS))
    assert RENDERER.decode([i for i, m in zip(ids, mask, strict=True) if m][:-1]) == "view a.py add<|end|>done"


def test_a_saved_tokenizer_renders_the_same(tmp_path):
    train_tokenizer(TEXTS * 20, vocab_size=400).save(str(tmp_path / "tokenizer.json"))
    loaded = load_renderer(tmp_path)
    text = "a <|end|> b\n"
    assert loaded.prompt(text) == RENDERER.prompt(text)
    assert loaded.vocab_size == RENDERER.vocab_size <= 400


def test_training_is_reproducible():
    assert train_tokenizer(TEXTS, 300).to_str() == train_tokenizer(TEXTS, 300).to_str()


def test_training_refuses_texts_with_markers():
    with pytest.raises(ValueError, match=r"texts\[1\]: holds the marker <\|end\|>"):
        train_tokenizer(["fine", "x <|end|>"])


def test_load_names_the_absent_or_damaged_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match=f"{path}: no such file"):
        load_renderer(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=str(path)):
        load_renderer(tmp_path)


def test_a_tokenizer_with_other_markers_is_refused(tmp_path):
    tokenizer = json.loads(train_tokenizer(TEXTS, 300).to_str().replace("<|obs|>", "<|tool|>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"<\|obs\|> is id None, expected 4"):
        load_renderer(tmp_path)


def test_a_marker_that_its_file_calls_ordinary_is_still_no_text(tmp_path):
    """With `special` off, the library reads the marker out of any text."""
    tokenizer = json.loads(train_tokenizer(TEXTS * 20, 400).to_str())
    for added in tokenizer["added_tokens"]:
        added["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load_renderer(tmp_path).prompt("a<|end|>") == RENDERER.prompt("a<|end|>")


def test_a_tokenizer_that_can_spell_a_marker_is_refused(tmp_path):
    """Its merges lead from characters to the marker."""
    tokenizer = json.loads(train_tokenizer(TEXTS, 300).to_str())
    tokenizer["pre_tokenizer"]["use_regex"] = False
    vocabulary, merges = tokenizer["model"]["vocab"], []
    tokenizer["model"]["merges"] = merges
    for end in range(2, len("<|end|>") + 1):
        vocabulary.setdefault("<|end|>"[:end], len(vocabulary))
        merges.append(["<|end|>"[: end - 1], "<|end|>"[end - 1]])
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"the text <\|end\|> is encoded as the token"):
        load_renderer(tmp_path)


def test_a_tokenizer_of_no_known_template_is_refused(tmp_path):
    tokenizer = json.loads(train_tokenizer(TEXTS, 300).to_str())
    tokenizer["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"holds neither <\|im_start\|>, as that of Qwen3 and MiMo does, nor markers"):
        load_renderer(tmp_path)
