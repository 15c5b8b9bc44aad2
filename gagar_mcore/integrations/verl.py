"""verl: importing this module registers the advantage estimator `gagar` (`algorithm.adv_estimator=gagar`).

With `VERL_USE_EXTERNAL_MODULES=gagar_mcore.integrations.verl` in the environment verl imports it in every process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from gagar_mcore.integrations.row_credit import credit_rows
from gagar_mcore.integrations.rows import PREFIX, Row, read_notes, read_params

try:
    from verl.trainer.ppo.core_algos import register_adv_est
except ModuleNotFoundError as error:
    if error.name != "verl":
        raise
    mend = "install gagar into the environment of verl (pip install --no-deps .), or verl into this one (pip install verl)"
    raise ModuleNotFoundError(f"gagar_mcore.integrations.verl needs verl, which is missing: {mend}", name="verl") from error

Columns = Mapping[str, Sequence[Any]]
_given: ContextVar[tuple[Columns, dict[str, float]] | None] = ContextVar("gagar_columns", default=None)


@contextmanager
def columns(fields: Columns) -> Iterator[dict[str, float]]:
    """The `gagar_*` fields of the batch whose advantages are computed inside the block; yields its metrics, complete at the end.

    verl hands an estimator nothing but rewards, mask and uid; what a grader found takes this way. `fields` maps names to one
    value a row, in the order of the batch; a whole `non_tensor_batch` will do. `gagar_member` names the trajectory that a row
    belongs to, within its uid (without it every row is its own); the others are those of `rows.Notes`."""
    metrics: dict[str, float] = {}
    token = _given.set((fields, metrics))
    try:
        yield metrics
    finally:
        _given.reset(token)


@register_adv_est("gagar")
def compute_gagar_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any = None,
    config: Any = None,
    non_tensor_batch: Columns | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both `[rows, response length]` in float32: the row's advantage where `response_mask` is 1, else 0.

    token_level_rewards: `[rows, response length]`; their sum over a row is its reward, in [0, 1]. index: the uid of each row,
    equal within a group. config: verl's algorithm section; its `gagar` mapping holds the constants (`CreditParams`).
    non_tensor_batch: the `gagar_*` fields where a caller passes them here instead of through `columns`.
    Rows without a token to train are padding and belong to no group. Raises ValueError naming row, group or setting."""
    settings = {} if config is None else config
    if settings.get("use_kl_in_reward"):
        raise ValueError("algorithm.use_kl_in_reward: a reward less a KL penalty is no outcome; set it to false")
    if index is None:
        raise ValueError("uid: missing in the batch; gagar needs it to tell the groups apart")
    fields, metrics = _given.get() or ({}, {})
    trained = response_mask.bool().any(-1).nonzero().flatten().tolist()
    rows = _rows(token_level_rewards, index.tolist(), fields if non_tensor_batch is None else non_tensor_batch, trained)
    credit = credit_rows(rows, read_params(settings.get("gagar")))
    credit.log()
    metrics.update(credit.metrics())
    values = torch.zeros(len(response_mask), 1, dtype=torch.float32)
    values[trained, 0] = torch.tensor(credit.advantages, dtype=torch.float32)
    advantages = values.to(response_mask.device) * response_mask
    return advantages, advantages


def _rows(rewards: torch.Tensor, uids: list[Any], fields: Columns, trained: list[int]) -> list[Row]:
    own = {name: list(values) for name, values in fields.items() if name.startswith(PREFIX)}
    for name, values in own.items():
        if len(values) != len(uids):
            raise ValueError(f"{name}: {len(values)} values for a batch of {len(uids)} rows")
    members = own.pop(f"{PREFIX}member", None) or [f"row {row}" for row in range(len(uids))]
    totals = rewards.double().sum(-1).tolist()
    notes = {row: read_notes({name: values[row] for name, values in own.items()}, f"row {row}") for row in trained}
    return [Row(uids[row], str(members[row]), totals[row], notes[row]) for row in trained]
