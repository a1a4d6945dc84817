"""Messages between head and probe: framing, decoding, requests, and the log of commands."""
