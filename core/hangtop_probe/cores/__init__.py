"""Core files: what one costs, and taking one."""
