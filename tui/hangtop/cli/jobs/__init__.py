"""Shared parts of commands: a session, the target job, a capture in its place."""
