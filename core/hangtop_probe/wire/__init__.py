"""Being a probe: starting, framing, requests, its cache and its tools."""
