"""A gallery of small training jobs that really hang, each in its own way, on this machine."""
