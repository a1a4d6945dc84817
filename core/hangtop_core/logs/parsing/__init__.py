"""Lines of logs: prefixes, records, tracebacks, and whose they are."""
