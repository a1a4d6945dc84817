"""Clusters other than Slurm's: Kubernetes and Ray."""
