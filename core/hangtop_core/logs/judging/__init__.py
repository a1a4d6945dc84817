"""Conclusions from the logs of a job: the first error, and its consequences."""
