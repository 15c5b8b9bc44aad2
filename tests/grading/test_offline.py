"""Recorded groups of any program, graded again by the command."""

import asyncio
import json
import math
import shutil

import pytest
from grading_builders import BASE, FIXED, file_diff, repair, trajectory
from scripted_model import by_size, call, diligent, results, serving, sizes

from gagar_mcore.config.load import RecipeError, dump_recipe, load_recipe
from gagar_mcore.controller.grade import audit, grade
from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.grading.agreement import agreement, kendall_tau, places
from gagar_mcore.grading.audit import mean_interval, wilson
from gagar_mcore.grading.recorded import read_groups
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import RecordError, publish_json
from gagar_mcore.records.types import Grade, Group, Verdict
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.write import write_task

GENERATED = generate_task(5, 3)

SLOPPY = repair(FIXED.replace("return out", "print(out)\n    return out"))
MEMBERS = [
    {"id": "clean", "reward": 1.0, "patch": repair(), "turns": [{"action": "view", "observation": "text"}]},
    {"id": "sloppy", "reward": 1.0, "patch": SLOPPY, "tests": {"a": "passed"}, "output": "ok"},
    {"id": "wrong", "reward": 0.0},
]


def imported(**changes):
    record = {"id": "i", "format": "openai", "source": {"file": "f", "line": 1, "sha256": "0"}, "task_id": "t", "steps": []}
    record |= {"messages": [{"role": "user", "content": "mend"}], "patch": repair(), "exit_status": "submitted", "extra": None}
    return record | changes


def folder(tmp_path, *groups):
    (tmp_path / "in/code").mkdir(parents=True)
    (tmp_path / "in/code/util.py").write_text(BASE)
    lines = [json.dumps({"instruction": "mend scale", "repository": "code", **group}) for group in groups]
    (tmp_path / "in/groups.jsonl").write_text("\n".join(lines) + "\n\n")
    return tmp_path / "in"


def run(source, tmp_path, *overrides, repeat=1, shuffle=False, count=None, keep=None):
    out = tmp_path / "out.jsonl"
    line = asyncio.run(grade(source, overrides, repeat, shuffle, count, keep, out))
    return line, [json.loads(text) for text in out.read_text().splitlines()]


def test_a_group_of_another_stack_by_the_static_grader(tmp_path):
    source = folder(tmp_path, {"group": "g", "trajectories": MEMBERS})
    line, [row] = run(source, tmp_path, keep=tmp_path / "kept")
    assert line == "1 groups, 1 verdicts, 0 hacks"
    assert (row["group"], row["fallback"], row["verdict"]["grader"]) == ("g", None, "static")
    assert row["tiers"]["clean"] < row["tiers"]["sloppy"]
    assert row["advantages"]["clean"] > row["advantages"]["sloppy"] > 0 > row["advantages"]["wrong"]
    assert (tmp_path / "kept/000000-000/manifest.json").is_file()


def test_groups_in_which_nothing_passed_are_left_out_and_a_count_bounds_them(tmp_path):
    groups = [{"group": f"g{i}", "trajectories": MEMBERS if i else MEMBERS[2:]} for i in range(4)]
    line, rows = run(folder(tmp_path, *groups), tmp_path, count=3)
    assert sorted(row["group"] for row in rows) == ["g1", "g2"] and line.startswith("2 groups")


def test_imported_trajectories_have_turns(tmp_path):
    messages = [
        {"role": "user", "content": "mend"},
        {"role": "assistant", "thought": "hm", "content": None, "tool_calls": [{"name": "bash", "arguments": "{}"}]},
        {"role": "tool", "content": "seen"},
        {"role": "tool", "content": [{"type": "text", "text": "more"}]},
        {"role": "assistant", "content": "done"},
    ]
    members = [
        {"id": "a", "reward": 1.0, "imported": imported(messages=messages)},
        {"id": "b", "reward": 1.0, "imported": imported(steps=[{"action": "ls", "observation": "x"}], exit_status=None)},
    ]
    [found] = read_groups(folder(tmp_path, {"group": "g", "trajectories": members}) / "groups.jsonl")
    first, second = found.trajectories
    assert [(t.action, t.observation) for t in first.turns] == [("hm\nbash {}", "seen\nmore"), ("done", "")]
    assert [(t.action, t.observation) for t in second.turns] == [("ls", "x")]
    assert (first.patch, first.end_reason, second.end_reason) == (repair(), "finished", "max_turns")


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"group": "g", "trajectories": []}, "line 1: trajectories: "),
        ({"group": "g", "trajectories": [{"id": "a"}]}, r"line 1: trajectories\.0\.reward: field required"),
        ({"group": "g", "trajectories": [{"id": "a", "reward": 2.0}]}, r"trajectories\.0\.reward"),
        ({"group": "g", "trajectories": MEMBERS, "task": "t"}, "either task or instruction"),
        ({"group": "g", "trajectories": MEMBERS, "repository": "nowhere"}, "nowhere: no such folder"),
        ({"group": "g", "trajectories": [{"id": "a", "reward": 1.0, "imported": {}}]}, "field required"),
    ],
)
def test_a_line_that_cannot_be_used_is_said(tmp_path, group, message):
    with pytest.raises(RecordError, match=message):
        list(read_groups(folder(tmp_path, group) / "groups.jsonl"))


def agentic(url):
    section = {"grader": "agentic", "deadline_s": 60, "agentic.endpoint": url, "agentic.model": "m", "agentic.max_seconds": 50}
    return [f"grading.{name}={value}" for name, value in section.items()]


def test_repeated_verdicts_and_their_agreement(tmp_path):
    members = [*MEMBERS, {"id": "third", "reward": 1.0, "patch": SLOPPY + file_diff("notes.txt", None, "a\nb\n")}]
    source = folder(tmp_path, {"group": "g", "trajectories": members})
    with serving(diligent) as (url, heard):
        line, rows = run(source, tmp_path, *agentic(url), repeat=3, shuffle=True)
    assert [row["repeat"] for row in rows] == [0, 1, 2] and len(heard) == 6
    assert line.splitlines()[-1] == "agreement over 3 pairs: Kendall tau-b 1.000, same tier 1.000"
    assert len({tuple(sizes(body["messages"])) for body in heard if results(body["messages"])}) == 3


def test_without_shuffle_names_and_order_stay(tmp_path):
    source = folder(tmp_path, {"group": "g", "trajectories": MEMBERS})
    with serving(diligent) as (url, heard):
        run(source, tmp_path, *agentic(url), repeat=2)
    assert len({tuple(sizes(body["messages"])) for body in heard if results(body["messages"])}) == 1


def test_a_model_that_goes_by_order_is_found_out(tmp_path):
    members = [{"id": f"m{i}", "reward": 1.0, "patch": repair()} for i in range(6)]

    def first_is_best(messages):
        if not results(messages):
            return call("overview")
        return call("submit_verdict", grades=[g | {"rank": i + 1} for i, g in enumerate(by_size(messages))])

    with serving(first_is_best) as (url, _):
        line, rows = run(
            folder(tmp_path, {"group": "g", "trajectories": members}), tmp_path, *agentic(url), repeat=4, shuffle=True
        )
    tau = float(line.splitlines()[-1].split("tau-b ")[1].split(",")[0])
    assert len(rows) == 4 and tau < 0.9


def test_fallbacks_are_counted(tmp_path):
    source = folder(tmp_path, {"group": "g", "trajectories": MEMBERS}, {"group": "h", "trajectories": MEMBERS})
    with serving(lambda messages: call("submit_verdict", grades=[])) as (url, _):
        line, rows = run(source, tmp_path, *agentic(url))
    assert line.splitlines()[1] == "fallbacks: invalid 2"
    assert all(row["verdict"] is None and row["advantages"]["clean"] == row["advantages"]["sloppy"] for row in rows)


def test_what_cannot_be_graded_is_said_in_one_line(tmp_path):
    with pytest.raises(RecipeError, match="neither a run directory"):
        run(tmp_path, tmp_path)
    source = folder(tmp_path, {"group": "g", "trajectories": MEMBERS})
    with pytest.raises(RecipeError, match="none grades nothing"):
        run(source, tmp_path, "grading.grader=none", "method.name=grpo")
    (tmp_path / "out.jsonl").write_text("")
    with pytest.raises(RecipeError, match="exists"):
        run(source, tmp_path)


@pytest.mark.parametrize(
    ("other", "tau"),
    [
        ((1, 2, 3, 4), 1.0),
        ((4, 3, 2, 1), -1.0),
        ((1, 2, 4, 3), 4 / 6),
        ((1, 1, 2, 3), 5 / math.sqrt(6 * 5)),
        ((1, 1, 1, 1), math.nan),
    ],
)
def test_kendalls_tau_b(other, tau):
    names = "abcd"
    found = kendall_tau(dict(zip(names, (1, 2, 3, 4), strict=True)), dict(zip(names, other, strict=True)))
    assert found == pytest.approx(tau, nan_ok=True)


def test_places_put_tiers_before_ranks():
    good, fair = Grade(5, 5, 5, 5, 5, rank=2), Grade(3, 3, 3, 3, 3, rank=1)
    verdict = Verdict("x", {"fair": fair, "good": good, "also": good})
    assert places(verdict, CreditParams()) == {"good": 1, "also": 1, "fair": 2}
    other = Verdict("x", {"fair": good, "good": good, "also": good})
    found = agreement([[verdict, other]], CreditParams())
    assert math.isnan(found.tau) and found.tiers == pytest.approx(2 / 3) and found.pairs == 1


def finished_run(tmp_path, name, *steps):
    """A run directory with one group a step; each is told by the patches of its passing trajectories."""
    write_task(GENERATED, tmp_path / "tasks")
    layout = RunLayout(tmp_path / name)
    overrides = ["tasks.source=harbor", f"tasks.path={tmp_path / 'tasks'}", "tasks.heldout_count=0", "train.eval_every=0"]
    layout.root.mkdir()
    layout.recipe.write_text(dump_recipe(load_recipe("tiny", overrides)))
    for step, patches in enumerate(steps, start=1):
        members = [trajectory(f"s{step}-m{i}", patch) for i, patch in enumerate(patches)] + [
            trajectory(f"s{step}-m9", reward=0.0)
        ]
        group = Group(
            f"s{step}", step, GENERATED.id, [t.id for t in members], None, compute_credit(members, None, CreditParams())
        )
        for member in members:
            publish_json(layout.trajectory(step, member.id), to_plain(member), 1)
        publish_json(layout.group(step, group.id), to_plain(group), 1)
    return layout


def fixed(extra=""):
    bug, text = GENERATED.bug, GENERATED.files[GENERATED.bug.file]
    return file_diff(bug.file, text, text.replace(bug.buggy, bug.fixed)) + (file_diff("notes.txt", None, extra) if extra else "")


def test_groups_of_a_run_whose_trajectories_are_still_there(tmp_path):
    layout = finished_run(tmp_path, "run", [fixed()], [fixed(), fixed("left behind\n")])
    line, rows = run(layout.root, tmp_path)
    assert {row["group"] for row in rows} == {"s1", "s2"} and line == "2 groups, 2 verdicts, 0 hacks"
    assert {"s2-m0": 1, "s2-m1": 3} in [row["tiers"] for row in rows]
    shutil.rmtree(layout.step(1) / "trajectories")
    (tmp_path / "out.jsonl").unlink()
    assert run(layout.root, tmp_path)[0].startswith("1 groups")


def test_an_audit_of_two_runs_and_of_two_halves(tmp_path):
    worse, better = [fixed("left behind\n")], [fixed()]
    one, other = finished_run(tmp_path, "one", worse, better), finished_run(tmp_path, "other", better, better)
    lines = asyncio.run(audit(one.root, [], None, None)).splitlines()
    assert lines[0] == "1 pairs judged" and "new 5.000 [nan, nan]" in lines[1]
    assert lines[2] == "win rate of new: 1.000 [0.207, 1.000] (1 won, 0 tied)"
    assert "(0 won, 1 tied)" in asyncio.run(audit(other.root, [], other.root, None))
    with serving(lambda messages: 401) as (url, _):
        assert asyncio.run(audit(one.root, agentic(url), None, None)) == "0 pairs judged, 1 without a verdict"


def test_sides_that_share_no_task_cannot_be_compared(tmp_path):
    one = finished_run(tmp_path, "one", [fixed()])
    assert asyncio.run(audit(one.root, [], None, None)) == "nothing to compare: no task was passed on both sides"


def test_sides_are_not_told_to_a_model(tmp_path):
    one = finished_run(tmp_path, "one", [fixed("left behind\n")], [fixed()])
    with serving(diligent) as (url, heard):
        line = asyncio.run(audit(one.root, agentic(url), None, None))
    assert "(1 won, 0 tied)" in line
    assert not any(word in json.dumps(results(heard[-1]["messages"])) for word in ('"new"', '"old"', "s1-m", "s2-m"))


def test_intervals():
    assert str(wilson(0.5, 100)) == "0.500 [0.404, 0.596]"
    assert (wilson(0.0, 10).low, wilson(1.0, 10).high) == (pytest.approx(0.0, abs=1e-9), 1.0)
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.value == 2.0 and found.high - 2.0 == pytest.approx(1.95996 / math.sqrt(3), rel=1e-5)
