"""What is known of nodes, processes and jobs, folded from what probes send."""
