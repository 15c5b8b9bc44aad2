"""Credit for other training stacks."""
