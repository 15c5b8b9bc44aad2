import json
import shutil
from dataclasses import replace

import pytest
from example_runs import graded_group, make_run, publish

from gagar_mcore.config.load import dump_recipe, load_recipe
from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import RecordError, publish_json, read_json, write_file
from gagar_mcore.viewer.explain import explain_run

GROUP = "s000001-g0000"


@pytest.fixture
def run(layout):
    return make_run(layout, steps=1, groups=2)


def test_a_trajectory_is_explained_from_the_records_of_its_run(run):
    lines = explain_run(run, f"{GROUP}-m02").splitlines()
    assert lines[0] == f"Step 1, group {GROUP}, task bug-17-00002, method gagar"
    assert lines[1] == (
        f"Trajectory {GROUP}-m02 has advantage +0.311355: reward 1 from the tests, "
        "minus the mean 0.714286 of 7 valid trajectories, times discount factor 0.85 (tier 2) and lambda 1.28205."
    )
    assert [line.split() for line in lines[2:]] == [
        ["reward", "=", "1", "+1"],
        ["mean", "-", "0.714286", "+0.285714"],
        ["redistribution", "x", "1.08974", "+0.311355"],
    ]


def test_as_data(run, layout):
    data = json.loads(explain_run(run, f"{GROUP}-m04", as_json=True))
    recorded = read_json(layout.group(1, GROUP))["credit"]
    assert data["advantage"] == data["steps"][-1]["value"] == recorded["advantages"][f"{GROUP}-m04"]
    assert (data["step"], data["group_id"], data["task_id"]) == (1, GROUP, "bug-17-00002")
    assert (data["tier"], data["factor"], data["lam"], data["passing"], data["valid"]) == (3, 0.2, recorded["lam"], 5, 7)


def test_invalid_and_hack_are_explained_too(run):
    assert "it is invalid (sandbox lost)" in explain_run(run, f"{GROUP}-m07")
    assert "set to 0 as a confirmed hack" in explain_run(run, f"{GROUP}-m05")


def test_dropped_groups_and_fallbacks_are_explained_too(run, layout):
    group, members = graded_group(2, "s000002-g0000")
    late = replace(group, verdict=None, credit=compute_credit(members, None, CreditParams(), "late"))
    publish(layout, late, members)
    passing = members[:2]
    dropped = replace(group, id="s000002-g0001", trajectory_ids=[m.id for m in passing], verdict=None)
    passing = [replace(m, id=m.id.replace("g0000", "g0001"), group_id=dropped.id) for m in passing]
    dropped = replace(dropped, trajectory_ids=[m.id for m in passing], credit=compute_credit(passing, None, CreditParams()))
    publish(layout, dropped, passing)
    assert "no verdict was used (late)" in explain_run(run, "s000002-g0000-m00")
    assert "its group was dropped, all 2 valid trajectories pass" in explain_run(run, "s000002-g0001-m00")


def test_a_unique_beginning_of_an_id_is_enough(run, layout):
    shutil.rmtree(layout.step(1) / "groups")
    shutil.rmtree(layout.step(1) / "trajectories")
    group, members = graded_group(1, "s000001-g0009")
    members = members[3:4] + [replace(m, id=f"other-{m.id}") for m in members if m.member != 3]
    group = replace(group, trajectory_ids=[m.id for m in members], verdict=None)
    publish(layout, replace(group, credit=compute_credit(members, None, CreditParams())), members)
    assert "s000001-g0009-m03 has advantage" in explain_run(run, "s0")


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("nothing", f"no trajectory 'nothing'; 16 are there, {GROUP}-m00 to s000001-g0001-m07"),
        (f"{GROUP}-m0", f"8 trajectories begin with '{GROUP}-m0', give more of the id: {GROUP}-m00, {GROUP}-m01"),
        ("s000001", "16 trajectories begin with 's000001', .* and 8 more$"),
    ],
)
def test_an_id_that_names_no_single_trajectory_is_told_what_there_is(run, prefix, message):
    with pytest.raises(RecordError, match=message):
        explain_run(run, prefix)


def test_deleted_trajectories_are_told_of(run, layout):
    shutil.rmtree(layout.step(1) / "trajectories")
    with pytest.raises(RecordError, match=r"none are there; those of 1 steps are deleted \(retention.steps\)"):
        explain_run(run, GROUP)


def test_a_group_that_is_not_finished_is_told_of(run, layout):
    layout.group(1, GROUP).unlink()
    with pytest.raises(RecordError, match="its group is not finished"):
        explain_run(run, f"{GROUP}-m00")


def test_a_record_of_other_constants_is_not_explained_away(run, layout):
    write_file(layout.recipe, dump_recipe(load_recipe("tiny", ["method.t3=0.5"])).encode())
    with pytest.raises(RecordError, match=f"{GROUP}-m00: the record says advantage 0.366.*, but .* gives 0.340"):
        explain_run(run, f"{GROUP}-m00")


def test_a_record_from_before_penalties_is_read(run, layout):
    record = read_json(layout.group(1, GROUP))
    del record["credit"]["penalties"]
    publish_json(layout.group(1, GROUP), record, epoch=1)
    assert "has advantage +0.3663" in explain_run(run, f"{GROUP}-m00")


def test_a_damaged_record_is_named(run, layout):
    path = layout.trajectory(1, f"{GROUP}-m00")
    publish_json(path, {"id": 3}, epoch=1)
    with pytest.raises(RecordError, match=f"{path}: "):
        explain_run(run, f"{GROUP}-m00")


def test_what_the_records_say_cannot_steer_a_terminal(run, layout):
    group, members = graded_group(1, GROUP, "bug-17-00002")
    credit = compute_credit(members, None, CreditParams(), "invalid: \x1b[31m\u202e")
    publish_json(layout.group(1, GROUP), to_plain(replace(group, verdict=None, credit=credit)), epoch=1)
    said = explain_run(run, f"{GROUP}-m00")
    assert "\x1b" not in said and "\u202e" not in said and "␛[31m" in said


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run directory"):
        explain_run(tmp_path, "x")
