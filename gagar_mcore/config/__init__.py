"""Recipes: strict models of everything a run can be told, their loading and their overrides."""
