"""Grading: the workspace of a group, graders that compare its passing trajectories, and the check of what they say."""
