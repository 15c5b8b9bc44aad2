"""Architectures: their configurations, Megatron modules and weight maps."""
