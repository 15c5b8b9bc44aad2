import json
from pathlib import Path
from typing import Any

import pytest
from pytest import approx

from gagar_mcore.config.load import RecipeError, load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.plan.cluster import sizes_of
from gagar_mcore.plan.fit_run import fitted
from gagar_mcore.plan.latency import Latency
from gagar_mcore.plan.show_simulation import simulation_json, simulation_text
from gagar_mcore.plan.simulate import simulate, simulate_steps
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import publish_json
from gagar_mcore.records.types import Turn

# Every time is as long as its median, and so are sessions: 8 groups of 16, each session 5 turns of 10 + 1 s after 2 s of start.
EXACT = {
    "turn": 10.0, "command": 1.0, "start": 2.0, "test": 30.0, "grade": 20.0, "train": 60.0, "turns": 5.0,
}  # fmt: skip


def recipe(*overrides: str) -> Recipe:
    sizes = ["groups_per_step=8", "group_size=16", "concurrent_groups=8", "oversample=8", "max_turns=9"]
    medians = [f"simulate.{name}={{median: {value}}}" for name, value in EXACT.items()]
    rates = ["fault=0", "pass_alpha=1e6", "pass_beta=1e6"]  # all pass rates are a half
    fixed = [*(f"rollout.{size}" for size in sizes), *medians, *(f"simulate.{rate}" for rate in rates)]
    return load_recipe("tiny", [*fixed, "verify.timeout_s=100", *overrides])


def test_a_cluster_with_room_for_all_takes_as_long_as_one_group() -> None:
    roomy = recipe("simulate.testers=128")
    base = simulate_steps(roomy, sizes_of(roomy), 1)
    assert (base.kept, base.dropped, base.sessions, base.turns) == (8, {}, 128, 640)
    assert base.collect_s == approx(2 + 5 * 11 + 30 + 20)
    assert base.step_s == base.collect_s + 60
    assert base.uses["engines"].busy == approx(5 * 10 / base.collect_s) and base.uses["pods"].busy == approx(57 / base.collect_s)
    assert all(use.waited_s == 0 for use in base.uses.values())
    assert simulate(roomy, 1, double=False).bottleneck == "sessions"
    assert simulate(recipe("simulate.testers=4"), 1, double=False).bottleneck == "testers"


@pytest.mark.parametrize(
    ("scarce", "kind"),
    [
        ("simulate.engine_slots=2", "engines"),
        ("simulate.pods=4", "pods"),
        ("simulate.testers=1", "testers"),
        ("simulate.graders=1", "graders"),
    ],
)
def test_what_is_scarce_is_the_bottleneck(scarce: str, kind: str) -> None:
    simulation = simulate(recipe(scarce, "grading.deadline_s=3600"), 1)
    assert simulation.bottleneck == kind
    assert simulation.base.uses[kind].busy > 0.5
    assert simulation.doubled[kind] < 0.9 * simulation.base.step_s


def test_scarce_engines_are_always_at_work_and_bound_the_step_from_below() -> None:
    base = simulate_steps(recipe("simulate.engine_slots=2"), sizes_of(recipe("simulate.engine_slots=2")), 1)
    assert base.collect_s >= base.turns * 10 / 2
    assert base.uses["engines"].busy == approx(base.turns * 10 / 2 / base.collect_s)


def test_gradings_past_their_deadline_are_counted_and_hold_nothing_up() -> None:
    base = simulate(recipe("simulate.testers=128", "simulate.graders=1", "grading.deadline_s=50"), 1, double=False).base
    assert (base.kept, base.late) == (8, 6)


def test_equal_recipes_give_equal_simulations() -> None:
    long_tailed = recipe("simulate.turn={median: 5, spread: 1}", "simulate.turns={median: 4, spread: 0.5}", "simulate.fault=0.1")
    first = simulate(long_tailed, 2, double=False)
    assert first == simulate(long_tailed, 2, double=False)
    assert first != simulate(long_tailed.model_copy(update={"seed": 5}), 2, double=False)
    assert first.base.steps == 2 and first.base.kept == 8


def test_groups_that_carry_over_take_the_long_tail_off_the_steps() -> None:
    tailed = ["simulate.turns={median: 5, spread: 1}", "rollout.max_turns=200", "rollout.concurrent_groups=16"]
    whole, partial = (simulate(recipe(*tailed, *more), 6, double=False).base for more in ([], ["rollout.partial=true"]))
    assert whole.kept == partial.kept == 8
    assert partial.collect_s < 0.8 * whole.collect_s


def test_a_mix_of_sources_is_simulated() -> None:
    sources = [{"name": "code", "weight": 3.0, "max_turns": 3}, {"name": "asked", "source": "questions", "count": 4, "quota": 1}]
    mixed = [f"tasks={json.dumps({'mix': sources})}", "rollout.submit_unfinished=true"]
    base = simulate(recipe(*mixed), 1, double=False).base
    assert (base.kept, base.turns) == (8, 16 * (6 * 3 + 2 * 1))  # a question has one turn


def test_what_is_printed() -> None:
    simulation = simulate(recipe("simulate.testers=1"), 1)
    text = simulation_text("tiny", simulation)
    assert "bottleneck: testers" in text and "with twice as many" in text
    assert json.loads(simulation_json(simulation))["bottleneck"] == "testers"


def write_run(root: Path, make_trajectory: Any) -> None:
    """Groups of 4 with 4 or 16 turns; every second task passes in three of four sessions, the others in one."""
    layout = RunLayout(root)
    for group in range(6):
        for member in range(4):
            count = 4 if group % 2 else 16
            turns = [Turn(i, "a", "bash", "o", True, "stop", 3, 2.5, 2.0) for i in range(count)]
            passed = member < (3 if group % 2 else 1)
            trajectory = make_trajectory(
                member, float(passed), id=f"g{group}-m{member}", group_id=f"g{group}", turns=turns, seconds=2.5 * count + 1.5
            )
            publish_json(layout.trajectory(1, trajectory.id), to_plain(trajectory), 1)


def test_times_and_rates_are_fitted_to_a_run(tmp_path: Path, make_trajectory: Any) -> None:
    write_run(tmp_path, make_trajectory)
    fit = fitted(recipe(), tmp_path).simulate
    assert (fit.turn.median, fit.command.median, fit.start.median) == approx((2.0, 0.5, 1.5))
    assert fit.turns.median == approx(8.0) and fit.task_share == approx(1.0)
    assert fit.pass_alpha == approx(fit.pass_beta)
    assert (fit.fault, fit.test, fit.grade) == (0.0, recipe().simulate.test, recipe().simulate.grade)


def test_a_run_without_trajectories_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="holds no trajectories to fit to"):
        fitted(recipe(), tmp_path)


def test_what_took_next_to_no_time_does_not_make_other_draws_long() -> None:
    """A patch that is empty or does not apply is verified without a run of its tests."""
    fit = Latency.alike([1e-5, 0.0, 2.0, 2.0])
    assert fit.mean == approx(1.0, rel=1e-4) and fit.spread == approx(0.8326, rel=1e-3)
    with pytest.raises(ValueError, match="no value above 0"):
        Latency.alike([0.0])


def test_a_latency_is_fitted_to_its_own_draws() -> None:
    from random import Random

    rng = Random(1)
    fit = Latency.fitted([Latency(3.0, 0.7).draw(rng) for _ in range(4000)])
    assert fit.median == approx(3.0, rel=0.05) and fit.spread == approx(0.7, rel=0.05)
    with pytest.raises(ValueError, match="no value above 0"):
        Latency.fitted([0.0])
