"""What `gagar convert` is to do."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.rollout import MOST, Positive, Seconds

GIGABYTE = 10**9


class Layout(Section):
    """`ranks` processes hold the model, each its part; what is left of them after the other sizes are copies of attention, over
    which experts can be spread. `precision` is that of the weights in Megatron's checkpoint."""

    tp: Positive = 1
    pp: Positive = 1
    ep: Positive = 1
    etp: Positive = 1
    ranks: Annotated[int, Field(ge=1, le=1024)] | None = None
    precision: Literal["bf16", "fp32"] = "bf16"

    def trainer(self, timeout_s: float) -> TrainerSection:
        """Raises ValueError where the ranks are no multiple of the other sizes."""
        block = self.tp * self.pp
        ranks = self.ranks or self.pp * max(self.tp, self.ep * self.etp)
        if ranks % block:
            raise ValueError(f"--ranks: {ranks} is no multiple of tp * pp = {block}")
        return TrainerSection(
            tp=self.tp,
            pp=self.pp,
            ep=self.ep,
            etp=self.etp,
            dp=ranks // block,
            precision=self.precision,
            step_timeout_s=timeout_s,
        )


class Conversion(Section):
    """From `source` to `target`, a directory that does not exist yet. `companions` holds configuration and tokenizer. No
    collective waits longer than `timeout_s`, nor does the command for its end."""

    direction: Literal["hf-to-megatron", "megatron-to-hf"]
    source: Path
    target: Path
    companions: Path
    layout: Layout = Layout()
    format: Literal["bf16", "fp32", "fp8", "mxfp4"] = "bf16"
    naming: Literal["split", "fused"] = "split"
    max_file_gb: Annotated[float, Field(gt=0, le=MOST)] = 5.0
    timeout_s: Seconds = 6 * 3600.0

    @property
    def max_file_bytes(self) -> int:
        return int(self.max_file_gb * GIGABYTE)

    @property
    def trainer(self) -> TrainerSection:
        return self.layout.trainer(self.timeout_s)
