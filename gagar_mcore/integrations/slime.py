"""slime: `--custom-reward-post-process-path gagar_mcore.integrations.slime.post_process_rewards`."""

from argparse import Namespace
from collections.abc import Sequence
from numbers import Real
from typing import Any

from gagar_mcore.integrations.row_credit import credit_rows
from gagar_mcore.integrations.rows import Row, read_notes, read_params

ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")


def post_process_rewards(args: Namespace, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards and advantages of slime's flat list of `slime.utils.types.Sample`, both in its order.

    Samples are grouped by `group_index`; those that share a `rollout_id`, where there is one, are segments of one trajectory,
    and each carries the trajectory's whole reward. The `gagar_*` fields (`rows.Notes`) lie in `sample.metadata`; a sample that
    the engine aborted is invalid unless its `gagar_valid` says otherwise. `args.gagar`, a mapping that `--custom-config-path`
    sets, holds the constants (`CreditParams`). Raises ValueError for arguments under which slime would change the advantages,
    and for samples that make no group."""
    _check_arguments(args)
    raw = [sample.get_reward_value(args) for sample in samples]
    rows = [_row(sample, reward, place) for place, (sample, reward) in enumerate(zip(samples, raw, strict=True))]
    credit = credit_rows(rows, read_params(getattr(args, "gagar", None)))
    credit.log()
    return raw, credit.advantages


def _check_arguments(args: Namespace) -> None:
    if args.advantage_estimator not in ESTIMATORS:
        raise ValueError(
            f"--advantage-estimator {args.advantage_estimator}: would not take the advantages as they are; "
            f"use one of {', '.join(ESTIMATORS)}"
        )
    if getattr(args, "normalize_advantages", False):
        raise ValueError("--normalize-advantages: would undo the credit step; leave it off")


def _row(sample: Any, reward: Any, place: int) -> Row:
    """Samples without a `rollout_id`, which not every version of slime has, are trajectories of their own."""
    where = f"sample {place} (index {sample.index})"
    group = getattr(sample, "group_index", None)
    if group is None:
        raise ValueError(f"{where}: group_index is missing; give all samples of a prompt the same")
    notes = read_notes({"gagar_valid": sample.status.value != "aborted", **(sample.metadata or {})}, where)
    if notes.valid and not isinstance(reward, Real):
        raise ValueError(f"{where}: reward must be a number, got {reward!r}; see --reward-key where it is a mapping")
    rollout = getattr(sample, "rollout_id", None)
    return Row(group, f"sample {place}" if rollout is None else f"rollout {rollout}", reward, notes)
