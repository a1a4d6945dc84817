"""The state of nodes, processes and jobs, folded from what probes send."""
