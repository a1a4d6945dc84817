"""From a snapshot to findings: pure functions, no I/O."""
