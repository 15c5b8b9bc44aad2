"""Recipe section of what the trainer publishes."""

from typing import Literal

from gagar_mcore.config.base import Section


class PublishSection(Section):
    """`format` is how new weights are stored for engines: every weight in `bf16` or `fp32`, or as MiMo-V2 is published, in blocks
    of `fp8`, with experts in `mxfp4`. None: in `trainer.precision`."""

    format: Literal["bf16", "fp32", "fp8", "mxfp4"] | None = None
