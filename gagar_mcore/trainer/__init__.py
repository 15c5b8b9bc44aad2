"""The Megatron trainer: reads step batches, writes weights, metrics and checkpoints."""
