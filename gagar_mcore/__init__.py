"""Groupwise agentic grading and credit for mixture-of-experts code agents, trained with Megatron-Core."""

__version__ = "0.1.0"
