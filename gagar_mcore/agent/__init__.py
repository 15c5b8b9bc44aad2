"""The agent: a session of turns between a policy and a sandbox, token for token."""
