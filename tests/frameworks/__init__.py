"""Real frameworks and launchers, each with a job that really hangs: `make test-frameworks`."""
