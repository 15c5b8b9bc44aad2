"""Trajectories of other agents as records, and back as their files have them."""
