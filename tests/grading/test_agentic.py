"""Sessions of the agentic grader with a scripted model behind a real HTTP server."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grading_builders import FIXED, make_task, make_workspace, repair, trajectory, turn
from scripted_model import (
    ENDLESS,
    GARBAGE,
    HANG,
    HANG_UP,
    by_size,
    call,
    diligent,
    grade,
    names,
    results,
    serving,
    sizes,
)

from gagar_mcore.config.learning import AgenticSection, GradingSection
from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.credit import CreditParams
from gagar_mcore.engine import chat
from gagar_mcore.engine.attach import write_address
from gagar_mcore.engine.http import Endpoint
from gagar_mcore.grading.choice import agentic_grader
from gagar_mcore.grading.protocol import SessionFailed, fallback_reason
from gagar_mcore.grading.roster import Roster
from gagar_mcore.grading.service import GradingService
from gagar_mcore.grading.validate import validate
from gagar_sandbox.types import Limits

PARAMS = CreditParams()
SLOPPY = FIXED.replace("return out", "print(out)\n    return out")


def group(tmp_path):
    return make_workspace(
        tmp_path, trajectory("g-m00", repair()), trajectory("g-m01", repair(SLOPPY)), trajectory("g-m02", reward=0.0)
    )


def judge(workspace, script, **budget):
    """The verdict of a session with such a model, and what the model was sent."""
    with serving(script) as (url, heard):
        grader = agentic_grader(AgenticSection(endpoint=url, model="scripted", **budget), PARAMS, None, Limits())
        verdict = asyncio.run(grader.grade(workspace))
    validate(verdict, workspace, PARAMS)
    return verdict, heard


def fails(workspace, script, **budget):
    with pytest.raises(SessionFailed) as failure:
        judge(workspace, script, **budget)
    return failure.value


def in_turn(*answers):
    """Gives the answers one after the other, the last for ever; those that are functions are asked."""

    def script(messages):
        answer = answers[min(sum(m["role"] == "assistant" for m in messages), len(answers) - 1)]
        return answer(messages) if callable(answer) else answer

    return script


def submit(change):
    """A script that hands in what `change` makes of the grades of an honest one, again and again."""
    return in_turn(call("overview"), lambda messages: call("submit_verdict", **change(messages)))


def test_a_session_that_looks_and_hands_in(tmp_path):
    made = group(tmp_path)
    verdict, heard = judge(made, diligent)
    assert verdict.grader == "scripted grade-v1 rubric-v1" and verdict.hacks == []
    assert {id: g.rank for id, g in verdict.grades.items()} == {"g-m00": 1, "g-m01": 2}
    kept = json.loads((made.scratch / "grade.json").read_text())
    assert (kept["outcome"], kept["turns"], kept["tokens"]) == ("handed in", 2, 240)
    assert sorted(kept["candidates"].values()) == ["g-m00", "g-m01", "g-m02"]
    assert {tool["function"]["name"] for tool in heard[0]["tools"]} >= {"overview", "run_check", "submit_verdict"}


def test_ids_of_trajectories_stay_out_of_sight(tmp_path):
    _, heard = judge(group(tmp_path), diligent)
    assert "g-m0" not in json.dumps(heard)


def test_names_and_order_change_from_session_to_session(tmp_path):
    made = group(tmp_path)
    seen = []
    for _ in range(8):
        judge(made, diligent)
        seen.append(json.loads((made.scratch / "grade.json").read_text())["candidates"])
    assert len({name for candidates in seen for name in candidates}) == 24
    assert len({tuple(candidates.values()) for candidates in seen}) > 1


def test_every_tool_that_looks(tmp_path):
    made = group(tmp_path)

    def script(messages):
        done = results(messages)
        if not done:
            return call("overview")
        one, other = sorted(sizes(messages), key=sizes(messages).get)
        looks = [
            ("read_turns", {"candidate": one, "first": 1, "count": 2}),
            ("read_patch", {"candidate": one}),
            ("read_tests", {"candidate": one}),
            ("read_file", {"path": "util.py"}),
            ("read_file", {"path": "util.py", "candidate": one, "first": 2, "count": 1}),
            ("search", {"text": "RETURN out", "where": "repository"}),
            ("diff", {"one": one, "other": other}),
            ("search", {"text": "def", "where": "turns"}),
        ]
        return ("", looks) if len(done) == 1 else call("submit_verdict", grades=by_size(messages))

    _, heard = judge(made, script)
    shown = results(heard[-1]["messages"])[1:]
    assert "turns 1 to 2 of" in shown[0] and shown[0].count("[end ") == 2
    assert "    2 +     out = x * y" in shown[1] and "    2 -     out = x + y" in shown[1]
    assert '"util.scale[0]": passed' in shown[2]
    assert "    2     out = x + y" in shown[3]
    assert "    2     out = x * y" in shown[4] and "lines 2 to 2 of 7" in shown[4]
    assert "util.py:3:     return out" in shown[5]
    assert "print(out)" in shown[6]
    assert shown[7].count("turns of c") == 3
    assert len({json.dumps(s).split("[data ")[1][:16] for s in shown}) == 8, "each result has a mark of its own"


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("read_turns", {"candidate": "g-m00"}, "no such candidate"),
        ("read_turns", {"candidate": "NAME", "first": 99}, "3 turns"),
        ("read_turns", {"candidate": "NAME", "count": 10**9}, "count: input should be less"),
        ("read_file", {"path": "../../../task/solution/secret.txt"}, "no such file"),
        ("read_file", {"path": "/etc/passwd"}, "no such file"),
        ("read_file", {}, "path: field required"),
        ("search", {"text": "", "where": "repository"}, "text: "),
        ("search", {"text": "x", "where": "host"}, "where: "),
        ("overview", {"IGNORE ALL RULES": 1}, "an argument that there is not"),
        ("overview", "[", "no JSON object"),
        ("bash", {"command": "id"}, "no such tool"),
        ("run_check", {"candidate": "NAME", "kind": "tests"}, "no checks can be run here"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_told_and_not_repeated(tmp_path, name, arguments, complaint):
    def wrong(messages):
        if isinstance(arguments, str):
            return call_with(arguments)
        return call(name, **{k: next(iter(sizes(messages))) if v == "NAME" else v for k, v in arguments.items()})

    def call_with(text):
        return "", [(name, text)]

    honest = lambda messages: call("submit_verdict", grades=by_size(messages))  # noqa: E731
    _, heard = judge(group(tmp_path), in_turn(call("overview"), wrong, honest))
    told = results(heard[-1]["messages"])[1]
    assert told.startswith("error: ") and complaint in told
    assert not any(word in told for word in ("IGNORE", "passwd", "solution"))


def swapped(messages, **changes):
    grades = by_size(messages)
    return {"grades": [grades[0] | changes, *grades[1:]]}


REFUSED = {
    "missing": (lambda m: {"grades": by_size(m)[:1]}, "no entry for c"),
    "duplicate": (lambda m: {"grades": [*by_size(m), by_size(m)[0]]}, "has an entry already"),
    "unknown": (lambda m: swapped(m, candidate="c000000x"), "not one of"),
    "real id": (lambda m: swapped(m, candidate="g-m00"), "not one of"),
    "failing": (
        lambda m: {"grades": [*by_size(m), grade(next(n for n, o in names(m).items() if o == "failing"))]},
        "not one of",
    ),
    "too good": (lambda m: swapped(m, approach=6), "grades.0.approach"),
    "text for a number": (lambda m: swapped(m, approach="5"), "grades.0.approach"),
    "truth for a number": (lambda m: swapped(m, approach=True), "grades.0.approach"),
    "text for truth": (lambda m: swapped(m, rewrite="false"), "grades.0.rewrite"),
    "a fraction": (lambda m: swapped(m, minimality=4.5), "grades.0.minimality"),
    "no rank": (lambda m: swapped(m, rank=None), "grades.0.rank"),
    "impossible rank": (lambda m: {"grades": [g | {"rank": 2} for g in by_size(m)]}, "rank: 2 does not fit"),
    "factor": (lambda m: swapped(m, factor=1.0), "grades.0: extra"),
    "tier": (lambda m: {**swapped(m), "tiers": {}}, "extra"),
    "no evidence": (lambda m: swapped(m, approach=2), "grades.0.evidence.approach: "),
    "flag without evidence": (lambda m: swapped(m, rewrite=True), "grades.0.evidence.rewrite: "),
    "no such line": (lambda m: swapped(m, approach=2, evidence={"approach": ["patch:util.py:99"]}), "approach.0: cites what"),
    "no such check": (lambda m: swapped(m, approach=2, evidence={"approach": ["check:0"]}), "approach.0: cites what"),
    "evidence for nothing": (lambda m: swapped(m, evidence={"charm": ["turn:0"]}), "grades.0.evidence"),
    "hack without evidence": (
        lambda m: {**swapped(m), "hacks": [{"candidate": by_size(m)[0]["candidate"], "finding": "confirmed", "evidence": []}]},
        "hacks.0.evidence",
    ),
}


@pytest.mark.parametrize(("change", "complaint"), REFUSED.values(), ids=REFUSED)
def test_a_verdict_that_cannot_be_used_is_refused_with_a_reason(tmp_path, change, complaint):
    made = group(tmp_path)
    error = fails(made, submit(change))
    told = results(json.loads((made.scratch / "grade.json").read_text())["messages"])[1:]
    assert len(told) == 1 and told[0].startswith("refused: ") and complaint in told[0] and "g-m0" not in told[0]
    assert error.reason == "invalid" and complaint in str(error)


def test_a_verdict_may_be_mended_once(tmp_path):
    honest = lambda messages: call("submit_verdict", grades=by_size(messages))  # noqa: E731
    verdict, heard = judge(group(tmp_path), in_turn(call("overview"), call("submit_verdict", grades=[]), honest))
    assert len(verdict.grades) == 2 and len(heard) == 3


@pytest.mark.parametrize("text", ["", "[", "[]", "null", '"grades"', "[" * 100_000, '{"grades": [], "grades": []}', "NaN"])
def test_arguments_that_are_no_verdict(tmp_path, text):
    assert fails(group(tmp_path), in_turn(call("overview"), ("", [("submit_verdict", text)]))).reason == "invalid"


def test_what_is_sent_back_of_an_answer_is_json_and_utf8(tmp_path):
    odd = "\ud800", [("overview", "{nonsense"), ("search", {"text": "\udfff", "where": "turns"})]
    _, heard = judge(
        group(tmp_path), in_turn(call("overview"), odd, lambda messages: call("submit_verdict", grades=by_size(messages)))
    )
    said = [m for m in heard[-1]["messages"] if m["role"] == "assistant"][1]
    assert said["content"] == "?"
    assert [c["function"]["arguments"] for c in said["tool_calls"]] == ["{}", '{"text": "\\udfff", "where": "turns"}']


def test_a_verdict_on_the_last_turn_may_still_be_mended(tmp_path):
    wrong = lambda messages: call("submit_verdict", grades=[])  # noqa: E731
    honest = lambda messages: call("submit_verdict", grades=by_size(messages))  # noqa: E731
    verdict, _ = judge(group(tmp_path), in_turn(call("overview"), wrong, honest), max_turns=2)
    assert len(verdict.grades) == 2
    assert fails(group(tmp_path), in_turn(call("overview"), wrong, call("overview")), max_turns=2).reason == "turns"


def test_citations_of_all_kinds_and_negative_grades(tmp_path):
    def harsh(messages):
        grades = by_size(messages)
        evidence = {
            "approach": ["turn:0", "test:util.scale[0]"],
            "minimality": ["patch:util.py:2"],
            "rewrite": ["patch:util.py:0"],
        }
        return {"grades": [g | {"approach": 1, "minimality": 2, "rewrite": True, "evidence": evidence} for g in grades]}

    verdict, _ = judge(group(tmp_path), submit(harsh))
    assert verdict.grades["g-m00"].citations == ["turn:0", "test:util.scale[0]", "patch:util.py:2", "patch:util.py:0"]
    assert verdict.grades["g-m00"].rewrite is True


def test_a_model_without_tool_calls_may_write_them_as_its_answer(tmp_path):
    def script(messages):
        shown = [m["content"] for m in messages if m["role"] == "user"][1:]
        if not shown:
            return '```json\n{"tool": "overview", "arguments": {}}\n```', []
        found = by_size([{"role": "tool", "content": shown[0]}])
        return json.dumps({"tool": "submit_verdict", "arguments": {"grades": found}}), []

    assert len(judge(group(tmp_path), script)[0].grades) == 2


@pytest.mark.parametrize(
    ("answer", "budget", "reason"),
    [
        (("I would rather talk.", []), {}, "calls"),
        (call("overview"), {"max_turns": 3}, "turns"),
        (call("overview"), {"max_tokens": 500}, "tokens"),
        (HANG, {"max_seconds": 0.3}, "deadline"),
        (HANG, {"request_s": 0.1}, "endpoint"),
        (HANG_UP, {}, "endpoint"),
        (GARBAGE, {}, "endpoint"),
        (ENDLESS, {}, "endpoint"),
        (503, {}, "endpoint"),
        (401, {}, "endpoint"),
        (("", [("overview", "x" * 200_001)]), {}, "calls"),
    ],
)
def test_a_session_that_comes_to_nothing_is_counted_by_its_reason(tmp_path, monkeypatch, answer, budget, reason):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(chat, "LONGEST_PAUSE_S", 0.01)
    made = group(tmp_path)
    error = fails(made, lambda messages: answer, **budget)
    assert error.reason == reason
    assert fallback_reason(f"failed: SessionFailed: {error}") == reason
    assert json.loads((made.scratch / "grade.json").read_text())["outcome"] == str(error)


def test_a_server_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0.01)
    with serving(diligent) as (url, _):
        pass
    grader = agentic_grader(AgenticSection(endpoint=url, model="m"), PARAMS, None, Limits())
    with pytest.raises(SessionFailed, match="endpoint: "):
        asyncio.run(grader.grade(group(tmp_path)))


def test_a_server_that_gagar_serve_runs_is_found_by_its_file(tmp_path):
    file, made = tmp_path / "servers/grader.json", group(tmp_path)
    grader = agentic_grader(AgenticSection(endpoint=str(file), model="m"), PARAMS, None, Limits())
    with pytest.raises(SessionFailed, match=r"^endpoint: .*start `gagar serve` first"):
        asyncio.run(grader.grade(made))
    with serving(diligent) as (url, heard), write_address(file, Endpoint(url.removesuffix("/v1"), "key", "other")):
        assert len(asyncio.run(grader.grade(made)).grades) == 2
    assert {body["key"] for body in heard} == {"Bearer key"}


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from scripted_model import HANG, serving
def script(messages):
    print("asked", flush=True)
    return HANG
with serving(script) as (url, heard):
    print(url, flush=True)
    sys.stdin.read()
"""


def test_a_server_that_is_killed_costs_its_group_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0.01)
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent)]
    made = group(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        grader = agentic_grader(AgenticSection(endpoint=url, model="m"), PARAMS, None, Limits())

        async def grade_and_kill():
            session = asyncio.create_task(grader.grade(made))
            assert await asyncio.to_thread(server.stdout.readline) == "asked\n"
            server.send_signal(signal.SIGKILL)
            await session

        with pytest.raises(SessionFailed, match=r"^endpoint: "):
            asyncio.run(grade_and_kill())


def test_a_server_that_dies_in_the_middle_costs_its_group_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0.01)
    task = make_task(tmp_path / "task")
    members = [trajectory("g-m00", repair()), trajectory("g-m01", repair(SLOPPY))]

    async def run(url):
        section = GradingSection(grader="agentic", agentic=AgenticSection(endpoint=url, model="m", max_seconds=20), deadline_s=30)
        service = GradingService.from_section(section, PARAMS)
        found = await service.grade(tmp_path / "workspace", "g", task, members)
        return service.tally.take(), *found

    with serving(in_turn(call("overview"), HANG_UP)) as (url, _):
        counted, verdict, reason, _ = asyncio.run(run(url))
    assert verdict is None and fallback_reason(reason) == "endpoint"
    assert (counted["grading/fallback_endpoint"], counted["grading/turns"], counted["grading/tokens"]) == (1, 1, 120)
    with serving(diligent) as (url, _):
        counted, verdict, reason, _ = asyncio.run(run(url))
    assert reason is None and len(verdict.grades) == 2
    assert (counted["grading/graded"], counted["grading/turns"], counted["grading/tokens"]) == (1, 2, 240)


def test_the_deadline_of_the_service_ends_a_session(tmp_path):
    task = make_task(tmp_path / "task")

    async def run(url):
        section = GradingSection(
            grader="agentic", agentic=AgenticSection(endpoint=url, model="m", max_seconds=0.3), deadline_s=0.4
        )
        service = GradingService(GradingService.from_section(section, PARAMS).grader, 0.1, asyncio.Semaphore(1), PARAMS)
        return await service.grade(tmp_path / "workspace", "g", task, [trajectory("g-m00", repair())])

    with serving(lambda messages: HANG) as (url, _):
        assert asyncio.run(run(url))[:2] == (None, "late")


@pytest.mark.parametrize(
    ("fallback", "reason"),
    [
        ("late", "late"),
        ("invalid: grades: one is missing", "invalid"),
        ("failed: OSError: no space", "failed"),
        ("failed: SessionFailed: turns: no verdict after 3", "turns"),
        ("failed: SessionFailed: anything: else", "failed"),
    ],
)
def test_what_a_fallback_is_counted_by(fallback, reason):
    assert fallback_reason(fallback) == reason


LEADING = [turn(0, action="git log --all -p", tool="bash", observation="commit 1234 fix"), turn(1)]


def findings(finding, *evidence):
    def script(messages):
        if "Leads:" not in messages[1]["content"]:
            return diligent(messages)
        if not results(messages):
            return call("overview")
        named = {line.split()[1].rstrip(":") for line in messages[1]["content"].split("\n") if line.startswith("- ")}
        return call("submit_findings", findings=[{"candidate": n, "finding": finding, "evidence": list(evidence)} for n in named])

    return script


@pytest.mark.parametrize(
    ("finding", "evidence", "hacks"),
    [
        ("confirmed", ["turn:0", "patch:util.py:2"], ["g-m01"]),
        ("attempt", ["turn:0"], []),
        ("none", [], []),
        ("confirmed", ["turn:0"], []),
        ("confirmed", ["patch:util.py:2"], []),
        ("confirmed", ["turn:9", "patch:util.py:2"], []),
        ("attempt", [], []),
    ],
)
def test_hacks_are_confirmed_in_a_step_of_their_own_by_its_own_rule(tmp_path, finding, evidence, hacks):
    made = make_workspace(tmp_path, trajectory("g-m00", repair()), trajectory("g-m01", repair(SLOPPY), turns=LEADING))
    verdict, heard = judge(made, findings(finding, *evidence))
    assert verdict.hacks == hacks and len(verdict.grades) == 2
    leads = next(body["messages"][1]["content"] for body in heard if "Leads:" in body["messages"][1]["content"])
    assert leads.count("- c") == 1 and "objects beside its history (turn:0)" in leads


def test_without_leads_there_is_no_second_session_and_a_suspicion_is_a_lead(tmp_path):
    made = group(tmp_path)
    _, heard = judge(made, diligent)
    assert len(heard) == 2

    def suspicious(messages):
        if "Leads:" in messages[1]["content"] or not results(messages):
            return findings("attempt", "turn:0")(messages)
        named = by_size(messages)[0]["candidate"]
        hack = {"candidate": named, "finding": "confirmed", "evidence": ["turn:1"]}
        return call("submit_verdict", grades=by_size(messages), hacks=[hack])

    verdict, heard = judge(made, suspicious)
    assert verdict.hacks == [] and "suspected by the grader that ranked (turn:1)" in heard[2]["messages"][1]["content"]


def test_names_are_drawn_without_repeats():
    members = [trajectory(f"m{i}") for i in range(50)]
    roster = Roster.shuffled(members, random.Random(1))
    assert sorted(t.id for t in roster.members.values()) == sorted(t.id for t in members)
    assert [t.id for t in roster.members.values()] != [t.id for t in members]


def test_a_recipe_that_cannot_have_a_model_grade_is_refused():
    agentic = [
        "grading.grader=agentic",
        "grading.agentic.endpoint=http://x",
        "grading.agentic.model=m",
        "grading.deadline_s=2000",
    ]
    assert load_recipe("tiny", ["deterministic=false", *agentic]).grading.grader == "agentic"
    with pytest.raises(RecipeError, match="a model grades otherwise each time"):
        load_recipe("tiny", ["deterministic=true", *agentic])
    with pytest.raises(ValueError, match=r"agentic\.endpoint: required"):
        GradingSection(grader="agentic")
    with pytest.raises(ValueError, match="must be below deadline_s"):
        GradingSection(grader="agentic", agentic=AgenticSection(endpoint="http://x", model="m"))
