"""Metrics of a run: JSON lines, Weights & Biases, and the live view on the terminal."""
