"""Files and file systems: where a process reads, what is full, what may hang."""
