"""Adapters of other agents' environments, which run in those agents' own Python: they import nothing of this project."""
