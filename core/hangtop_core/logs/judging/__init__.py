"""What the logs of a job say together: the first error, and what follows from it."""
