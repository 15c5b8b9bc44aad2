"""What options of the command line choose from."""

from enum import StrEnum


class GpuKind(StrEnum):
    h100 = "h100"
    h200 = "h200"
    b200 = "b200"


class Method(StrEnum):
    gagar = "gagar"
    grpo = "grpo"
    downweight_only = "downweight_only"


class Precision(StrEnum):
    bf16 = "bf16"
    fp32 = "fp32"


class ServerRole(StrEnum):
    policy = "policy"
    grader = "grader"


class WeightFormat(StrEnum):
    bf16 = "bf16"
    fp32 = "fp32"
    fp8 = "fp8"
    mxfp4 = "mxfp4"


class ImportFormat(StrEnum):
    swe_agent = "swe-agent"
    mini_swe_agent = "mini-swe-agent"
    openai = "openai"


class ImportForm(StrEnum):
    records = "records"
    messages = "messages"


class WeightNaming(StrEnum):
    SPLIT = "split"
    FUSED = "fused"
