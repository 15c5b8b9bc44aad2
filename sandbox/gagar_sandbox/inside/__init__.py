"""The code that runs inside a sandbox, as its PID 1. Standard library only, and little of that: it is imported at each start."""
