"""Which processes are ranks and launchers, and their numbers."""
