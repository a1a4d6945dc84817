"""Logs of ranks and launchers: parsed streams, errors, and known lines."""
