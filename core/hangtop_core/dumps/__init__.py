"""Flight-recorder dump files: search, and safe reading."""
