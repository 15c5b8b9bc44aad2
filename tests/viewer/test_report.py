import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from example_runs import PATCH, graded_group, make_run, publish, trajectory

from gagar_mcore.records.store import publish_json
from gagar_mcore.records.types import Grade, Turn, Verdict, Verification
from gagar_mcore.viewer.report import write_report
from gagar_mcore.viewer.select import GROUPS_OF_A_LATEST_STEP

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "closing": "</script></style></title></pre></details><script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "single": "' onmouseover='alert(1)",
    "link": '<a href="javascript:alert(1)">x</a>',
    "comment": "<!-- --!> <![CDATA[ ]]> <?php ?>",
    "entity": "&lt;b&gt; &#60;script&#62; &amp;",
    "svg": "<svg onload=alert(1)><style>@import 'x'</style></svg>",
    "surrogate": "a\udcff\ud800b",
    "control": "\x00\x1b[31mred\x1b]8;;http://x\x07\x08\x9b",
    "direction": "\u202eexe.txt\u2066\u2029",
}


class Page(HTMLParser):
    """What a browser would make of the page: its elements with attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"comment {data!r}")

    def unknown_decl(self, data):
        raise AssertionError(f"declaration {data!r}")

    def handle_pi(self, data):
        raise AssertionError(f"instruction {data!r}")

    @property
    def skeleton(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]


def read(layout) -> tuple[str, Page]:
    source = write_report(layout.root).read_text()
    return source, Page(source)


def publish_with(layout, word: str) -> None:
    """A run in which `word` stands wherever text from outside can stand."""
    turns = [Turn(0, word, word, word, False, "length", 9, 0.1), Turn(1, f"x {word}", "", f"y\n{word}", True, "stop", 1, 0.1)]
    tests = Verification(1.0, {word: "passed", f"t::{word}": "failed"}, f"out\n{word}\n", 0.1, suspicion=[word])
    patch = PATCH.replace("calc.py", f"calc{word}.py").replace("min(values)", word)
    group_id = "s000005-g0000"
    members = [trajectory(group_id, m, word, 1.0 - m, patch, turns=turns, verification=tests) for m in range(2)]
    lost = Verification(0.0, {}, "", 0.1, infrastructure_error=word)
    members.append(trajectory(group_id, 2, word, 0.0, word, valid=False, verification=lost))
    group, _ = graded_group(5, group_id, word)
    credit = replace(group.credit, fallback=word, advantages={members[0].id: 0.5, members[1].id: -0.5})
    grades = {members[0].id: Grade(5, 4, 3, 2, 1, 1, rewrite=True, citations=[f"patch:{word}:1", word])}
    group = replace(group, trajectory_ids=[m.id for m in members], verdict=Verdict(word, grades), credit=credit)
    publish(layout, group, members, instruction=f"do {word}")


def test_it_says_why_a_report_of_tests_was_doubted(layout):
    make_run(layout, steps=5)
    publish_with(layout, "odd")
    _, page = read(layout)
    assert page.text.count("suspicious: odd") == 2


def test_it_says_what_the_run_achieved(layout):
    make_run(layout, steps=5)
    _, page = read(layout)
    assert "59.0→75.0%" in page.text
    assert "54.0→84.0%" in page.text
    assert "+16.0 points" in page.text
    assert "step 5 of 5" in page.text
    for title in ("Pass rate", "Clean share", "Mean reward", "Tiers", "Lambda", "tokens", "Turns", "Entropy", "Log-prob", "Time"):
        assert title in page.text


def test_a_group_is_shown_from_task_to_credit(layout):
    make_run(layout, steps=1, groups=1)
    _, page = read(layout)
    assert "calc.py: width([6, 1, 9]) gives 0 not 8" in page.text
    assert "edit:4:    return max(values) - min(values)" in page.text
    assert "+    return max(values) - min(values)" in page.text
    assert "calc.width[0]" in page.text
    assert "lambda 1.2821" in page.text
    assert "5 of 7 pass" in page.text
    assert "+0.311" in page.text and "-0.714" in page.text
    assert "patch:calc.py:14" in page.text and "rewrite" in page.text
    marks = [a["class"] for tag, a in page.elements if tag == "span" and a.get("class", "").startswith("mark ")]
    assert set(marks) == {f"mark {style}" for style in ("tier1", "tier2", "tier3", "hack", "failed", "invalid")}


def test_a_length_penalty_is_shown_beside_the_reward(layout):
    make_run(layout, steps=1, groups=0)
    group, members = graded_group(1, "s000001-g0000")
    publish(layout, replace(group, credit=replace(group.credit, penalties={members[2].id: 0.125})), members)
    _, page = read(layout)
    assert "1 - 0.125 for length" in page.text


def test_equal_patches_share_a_column(layout):
    make_run(layout, steps=1, groups=1)
    _, page = read(layout)
    assert sum(a.get("class") == "patch" for _, a in page.elements) == 5


def test_it_loads_nothing_and_runs_nothing(layout):
    make_run(layout)
    source, page = read(layout)
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not {"script", "img", "a", "link", "iframe", "object", "embed", "form", "base", "foreignobject"} & {
        t for t, _ in page.elements
    }
    names = {name for _, attributes in page.elements for name in attributes}
    assert not [n for n in names if n.startswith("on") or n in ("style", "href", "src", "srcdoc", "xlink:href", "action")]
    assert "url(" not in page.style and "@import" not in page.style
    assert not re.search(r"https?://", source)


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_text_of_the_policy_makes_no_element_and_no_attribute(layout, tmp_path, payload):
    publish_with(layout, "word")
    make_run(layout, steps=1, groups=1)
    _, benign = read(layout)
    publish_with(layout, payload)
    source, page = read(layout)
    assert page.skeleton == benign.skeleton
    assert page.style == benign.style
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]", source)


@pytest.mark.parametrize("name", ["script", "closing", "image", "single", "link", "comment", "entity", "svg"])
def test_hostile_text_is_shown_as_it_was_written(layout, name):
    publish_with(layout, HOSTILE[name])
    make_run(layout, steps=1, groups=1)
    _, page = read(layout)
    assert page.text.count(HOSTILE[name]) > 10


def test_a_hostile_name_of_the_recipe_stays_text(layout):
    make_run(layout, steps=1, groups=1)
    recipe = layout.recipe.read_text()
    layout.recipe.write_text(recipe.replace("name: tiny", "name: '</title><script>alert(1)</script>'"))
    _, page = read(layout)
    assert "</title><script>alert(1)</script>" in page.text
    assert "script" not in {tag for tag, _ in page.elements}


def test_a_megabyte_on_one_line_is_cut_and_says_so(layout):
    publish_with(layout, "<" * (1 << 20))
    make_run(layout, steps=1, groups=1)
    source, page = read(layout)
    assert len(source) < 1_500_000
    assert len(re.findall(r"… \[1,04\d,\d+ more characters\]", page.text)) > 5


def test_a_patch_of_many_lines_is_cut_and_says_so(layout):
    member = trajectory("s000001-g0000", 0, patch=PATCH + "+x\n" * 5000)
    group, _ = graded_group(1, "s000001-g0000")
    publish(layout, replace(group, trajectory_ids=[member.id]), [member])
    make_run(layout, steps=0, groups=0)
    _, page = read(layout)
    assert "4,712 more lines are left out" in page.text


def test_however_much_there_is_the_page_stays_small_and_says_what_it_leaves_out(layout):
    turns = [Turn(i, f"action {i} " + "a<b " * 950, "bash", "seen " + "y" * 3000, True, "stop", 9, 0.1) for i in range(28)]
    for index in range(30):
        group_id = f"s000001-g{index:04d}"
        member = trajectory(group_id, 0, turns=turns if index else turns * 50)
        publish(layout, replace(graded_group(1, group_id)[0], trajectory_ids=[member.id]), [member])
    make_run(layout, steps=0, groups=0)
    source, page = read(layout)
    assert 3_500_000 < len(source.encode()) < 5_000_000
    shown = re.search(r"(\d+) of 30 groups are shown", page.text)
    assert 10 < int(shown[1]) < GROUPS_OF_A_LATEST_STEP
    assert "1388 turns are left out" in page.text
    assert re.search(r"In \d+ of them long texts are cut", page.text)


def test_records_that_are_missing_or_damaged_are_counted(layout):
    make_run(layout, steps=2, groups=2)
    layout.group(2, "s000002-g0000").write_text("{")
    publish_json(layout.group(2, "s000002-g0001"), {"id": 3}, epoch=1)
    layout.trajectory(1, "s000001-g0000-m00").unlink()
    layout.trajectory(1, "s000001-g0001-m01").write_bytes(b"\xff")
    with open(layout.metrics, "a") as file:
        file.write("nonsense\n")
    layout.recipe.write_text("name: [")
    _, page = read(layout)
    assert "missing or damaged: group (2), metrics line (1), recipe (1), trajectory (2)" in page.text
    assert "1 of 8 trajectories could not be read" in page.text


def test_a_run_that_has_just_begun(layout):
    make_run(layout, steps=0, groups=0)
    layout.metrics.unlink()
    _, page = read(layout)
    assert "No group is finished yet." in page.text
    assert "no values yet" in page.text


def test_a_step_that_was_cut_short(layout):
    make_run(layout, steps=2, groups=1)
    group, members = graded_group(3, "s000003-g0000")
    publish(layout, group, members)
    with open(layout.metrics, "a") as file:
        file.write('{"step": 3, "roll')
    layout.group(3, "x").with_name(".s000003-g0001.json.77.tmp").write_text("{")
    _, page = read(layout)
    assert "step 2 of 2" in page.text
    assert "Step 3" in page.text
    assert "missing or damaged" not in page.text


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run directory"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_writing_it_again_replaces_it(layout):
    make_run(layout, steps=1, groups=1)
    first, _ = read(layout)
    second, _ = read(layout)
    assert first == second
    assert not list(layout.root.glob(".*"))
