"""Programs and prepared runs: `hangtop run`, debugging, strace, numerics files."""
