"""Engines generate tokens from token ids and load published weights."""
