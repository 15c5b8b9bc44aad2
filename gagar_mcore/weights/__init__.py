"""Weights between trainer and engines: files in Hugging Face format, versions and lineages."""
