"""Tasks: what a session is asked to do, and the tests that decide."""
