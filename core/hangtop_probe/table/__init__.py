"""The process table, what is kept of each process, and the `watch` request."""
