"""Network test between nodes: `hangtop nettest`. `conduct` asks nodes; all judging is pure."""
