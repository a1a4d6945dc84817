"""Messages between head and probe: framing, decoding, requests, and what was run."""
