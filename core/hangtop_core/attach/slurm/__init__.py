"""Slurm: its jobs, its nodes, and probes started by srun."""
