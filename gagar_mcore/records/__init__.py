"""The typed records of one training step and the store that publishes them."""
