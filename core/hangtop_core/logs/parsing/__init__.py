"""Lines of logs: prefixes, records, tracebacks, and their ranks."""
