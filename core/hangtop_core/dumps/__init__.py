"""Flight-recorder dump files: finding them, and reading them safely."""
