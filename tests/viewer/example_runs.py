"""Run directories made through the records and the store that real runs use."""

from pathlib import Path

from gagar_mcore.config.load import dump_recipe, load_recipe
from gagar_mcore.credit import CreditParams, compute_credit
from gagar_mcore.randomness import python_rng
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.records.serialize import to_plain
from gagar_mcore.records.store import publish_json, write_file
from gagar_mcore.records.types import Grade, Group, Trajectory, Turn, Verdict, Verification, WeightSpan
from gagar_mcore.tracking.metrics import MetricsLog

PATCH = """diff --git a/calc.py b/calc.py
index 3f2a..9c1b 100644
--- a/calc.py
+++ b/calc.py
@@ -12,7 +12,7 @@ def width(values):
     if not values:
         return 0
-    return max(values) - max(values)
+    return max(values) - min(values)
 
 
 def clamp(value, low, high):
"""
SLOPPY = PATCH.replace("+    return", "+    print(values)\n+    return")
WRONG = PATCH.replace("- min(values)", "- 1")


def trajectory(group_id: str, member: int, task_id: str = "bug-17-00001", reward: float = 1.0, patch: str = PATCH, **changes):
    """One session of three turns."""
    turns = [
        Turn(0, "view calc.py width", "view", "1:def width(values):\n2:    if not values:", True, "stop", 9, 0.1),
        Turn(1, "edit:4:    return max(values) - min(values)", "edit", "ok", True, "stop", 14, 0.1),
        Turn(2, "done", "done", "", True, "stop", 2, 0.1),
    ]
    tests = {"calc.width[0]": "passed" if reward else "failed", "calc.clamp[0]": "passed"}
    fields = {
        "id": f"{group_id}-m{member:02d}",
        "group_id": group_id,
        "task_id": task_id,
        "member": member,
        "token_ids": list(range(40)),
        "logprobs": [0.0] * 15 + [-0.3] * 25,
        "loss_mask": [0] * 15 + [1] * 25,
        "weight_spans": [WeightSpan(0, 15, 40)],
        "turns": turns,
        "patch": patch,
        "end_reason": "finished",
        "reward": reward,
        "valid": True,
        "verification": Verification(reward, tests, "2 tests", 0.2),
        "seconds": 1.5,
    }
    return Trajectory(**{**fields, **changes})


def graded_group(step: int, group_id: str, task_id: str = "bug-17-00001") -> tuple[Group, list[Trajectory]]:
    """Eight trajectories of every outcome: two clean passes, two sloppy ones, a rewrite, a hack, a failure, an invalid one."""
    patches = [PATCH, PATCH, SLOPPY, SLOPPY, SLOPPY + "+# note\n", PATCH, WRONG, ""]
    rewards = [1.0] * 6 + [0.0, 0.0]
    members = [trajectory(group_id, m, task_id, rewards[m], patches[m]) for m in range(7)]
    members.append(
        trajectory(
            group_id, 7, task_id, 0.0, "", valid=False, invalid_reason="sandbox_lost", end_reason="invalid", verification=None
        )
    )
    ids = [t.id for t in members]
    grades = {i: Grade(5, 5, 5, 5, 5, rank=1) for i in ids[:2]}
    grades |= {i: Grade(4, 4, 3, 3, 4, rank=2, citations=["patch:calc.py:14"]) for i in ids[2:4]}
    grades[ids[4]] = Grade(2, 2, 1, 1, 2, rank=3, rewrite=True, citations=["patch:calc.py:14", "turn:1"])
    grades[ids[5]] = Grade(5, 5, 5, 5, 5, rank=1, workaround=True, citations=["turn:0"])
    verdict = Verdict("static", grades, [ids[5]], 0.3)
    return Group(group_id, step, task_id, ids, verdict, compute_credit(members, verdict, CreditParams())), members


def publish(layout: RunLayout, group: Group, trajectories: list[Trajectory], instruction: str | None = None) -> None:
    for member in trajectories:
        publish_json(layout.trajectory(group.step, member.id), to_plain(member), epoch=1)
    publish_json(layout.group(group.step, group.id), to_plain(group), epoch=1)
    if instruction is not None:
        write_file(layout.workspace(group.step, group.id) / "task.md", instruction.encode(errors="surrogatepass"))


def step_metrics(step: int, steps: int) -> dict[str, float]:
    """Metrics of a run that learns, with some noise."""
    rng = python_rng(3, "metrics", step)
    done = step / steps
    clean = 0.5 + 0.34 * done + rng.uniform(-0.05, 0.05)
    passing = 0.58 + 0.16 * done + rng.uniform(-0.05, 0.05)
    tier1 = 0.45 + 0.35 * done + rng.uniform(-0.06, 0.06)
    return {
        "rollout/pass_rate": passing,
        "rollout/reward_mean": passing,
        "rollout/clean_share": clean,
        "rollout/turns_mean": 3.4 - 0.5 * done + rng.uniform(-0.1, 0.1),
        "rollout/tokens_mean": 27 - 4.5 * done + rng.uniform(-0.4, 0.4),
        "rollout/entropy": 0.42 - 0.1 * done + rng.uniform(-0.02, 0.02),
        "rollout/invalid": 0,
        "groups/kept": 16,
        "groups/dropped_all_pass": rng.randint(2, 6),
        "groups/dropped_all_fail": rng.randint(0, 3),
        "grading/tier1": tier1,
        "grading/tier2": (1 - tier1) * 0.8,
        "grading/tier3": (1 - tier1) * 0.2,
        "credit/lambda_mean": 1.2 - 0.15 * done + rng.uniform(-0.02, 0.02),
        "train/loss": -0.01,
        "train/grad_norm": rng.uniform(0.4, 0.9),
        "train/rollout_logprob_abs_diff": 10 ** rng.uniform(-6, -5),
        "time/collect": rng.uniform(4, 6),
        "time/grade": rng.uniform(0.1, 0.4),
        "time/train": rng.uniform(2, 3),
        "time/load": 0.2,
    }


def make_run(layout: RunLayout, steps: int = 4, groups: int = 3) -> Path:
    """A finished run of the shipped tiny recipe."""
    write_file(layout.recipe, dump_recipe(load_recipe("tiny", [f"train.steps={max(1, steps)}"])).encode())
    log = MetricsLog(layout.metrics)
    log.log(0, {"eval/pass_rate": 0.59, "eval/clean_share": 0.54, "eval/clean_rate": 0.32, "eval/sessions": 512})
    for step in range(1, steps + 1):
        rates = {
            "eval/pass_rate": 0.58 + 0.17 * step / steps,
            "eval/clean_share": 0.53 + 0.31 * step / steps,
            "eval/sessions": 512,
        }
        log.log(step, step_metrics(step, steps) | (rates if step % max(1, steps // 5) == 0 else {}))
        for index in range(groups):
            group_id = f"s{step:06d}-g{index:04d}"
            publish(
                layout,
                *graded_group(step, group_id, f"bug-17-{step * groups + index:05d}"),
                "calc.py: width([6, 1, 9]) gives 0 not 8",
            )
    log.close()
    return layout.root
