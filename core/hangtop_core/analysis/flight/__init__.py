"""Flight recorders of several ranks, read together."""
