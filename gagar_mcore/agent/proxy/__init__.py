"""The session proxy: what an outside agent uses as its model, and what records every token of it."""
