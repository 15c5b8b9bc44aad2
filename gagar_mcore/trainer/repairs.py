"""Faults of Megatron-Core that show wherever Transformer Engine and Apex are absent, mended at the place where they are."""


def apply() -> None:
    """Call once, before a model is built."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(
        moe_utils, "te_general_gemm"
    ):  # the router reads it, and 0.16 binds it only after an import of Transformer Engine
        moe_utils.te_general_gemm = None
