"""Sandboxes in which code that a policy wrote may run."""
