"""Sources of updates, and the state that the app keeps between updates."""
