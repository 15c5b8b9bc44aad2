"""Recipe section of supervised fine-tuning."""

from typing import Annotated

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.learning import Rate
from gagar_mcore.config.rollout import Count, Positive


class SftSection(Section):
    """Cold start on demonstrations of the task generator. Learning rate: linear warm-up, flat up to `flat_share` of the
    steps, then cosine to 2 %. Loss weight 1 on actions and `context_weight` on everything else. `failing` and `sloppy`
    are shares of the demonstrations. `router_bias_update_rate` moves the experts' selection bias towards equal load."""

    steps: Positive = 700
    sequences_per_step: Positive = 12
    lr: Rate = 3e-3
    warmup_steps: Count = 60
    flat_share: Annotated[float, Field(ge=0, le=1)] = 0.4
    weight_decay: Rate = 0.05
    router_bias_update_rate: Rate = 1e-3
    context_weight: Rate = 0.2
    failing: Annotated[float, Field(ge=0, le=1)] = 0.2
    sloppy: Annotated[float, Field(ge=0, le=1)] = 0.55
    demonstration_seed: int = 501
