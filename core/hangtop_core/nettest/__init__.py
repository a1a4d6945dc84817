"""Whether nodes can talk: `hangtop nettest`. `conduct` asks nodes, all that judges is pure."""
