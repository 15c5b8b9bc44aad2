"""Code and questions in one batch, with the shipped policy, real sandboxes and real tests."""

import asyncio
import io
import json
from pathlib import Path

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.run import check_output, open_run
from gagar_mcore.controller.train import rollout
from gagar_mcore.records.batch import read_batch
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.store import read_json
from gagar_mcore.rollout.group import read_trajectories
from gagar_mcore.rollout.history import read_outcomes
from gagar_mcore.tasks.mix import Place
from gagar_mcore.tracking.console import Console

PROMPT = "calc.py: add(1, 2) gives 4 not 3\nfiles: calc.py"
SAID_AT_TIMES = "view calc.py sign"  # by the shipped policy, to that


def test_code_and_questions_in_one_batch(tmp_path: Path) -> None:
    questions = [{"id": f"q{i}", "question": PROMPT, "answer": SAID_AT_TIMES} for i in range(3)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, questions)))
    sources = [
        {"name": "code", "count": 3, "heldout_count": 0},
        {
            "name": "asked",
            "source": "questions",
            "path": str(tmp_path / "q.jsonl"),
            "heldout_count": 0,
            "max_turns": 1,
            "quota": 1,
        },
    ]
    root = tmp_path / "run"
    sizes = ["groups_per_step=2", "group_size=6", "oversample=8"]
    overrides = [f"tasks={json.dumps({'mix': sources})}", f"output={root}", "engine.threads=1", "train.eval_every=0"]
    recipe = load_recipe("tiny", [*overrides, *(f"rollout.{size}" for size in sizes)])
    collection = asyncio.run(asyncio.wait_for(rollout(recipe, Console("", 1, io.StringIO())), 120))

    kept = {g.task.source for g in collection.kept}
    assert kept == {"code", "asked"}
    asked = [t for g in collection.groups if g.task.source == "asked" for t in read_trajectories(RunLayout(root), g.group)]
    assert asked
    assert all((t.patch == SAID_AT_TIMES) == t.passed and len(t.turns) == 1 for t in asked if t.end_reason == "finished")
    assert {g.group.credit.method for g in collection.kept if g.task.source == "asked"} == {"grpo"}

    layout = RunLayout(root)
    batch, _ = read_batch(layout.batch(1))
    assert batch.num_sequences == sum(len(g.group.credit.advantages) for g in collection.kept)
    metrics = read_json(layout.step_metrics(1, "collect"))
    assert {"rollout/pass_rate", "rollout/code/pass_rate", "rollout/asked/pass_rate"} <= metrics.keys()
    assert [o.task for o in read_outcomes(layout, 1)] == [g.task.key for g in collection.groups]
    assert check_output(recipe, resume=True) == layout
    with open_run(recipe, resume=True) as run:
        assert run.position == collection.next_position
        begun = {name: place.begun for name, place in run.position.items()}
    assert sum(begun.values()) == len(collection.groups) and isinstance(run.position["code"], Place)
