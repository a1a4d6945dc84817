"""Lines about nodes and GPUs."""
