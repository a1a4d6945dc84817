"""Preparing a process once it is known to be a rank."""

from __future__ import annotations


def become_rank(directory: str, number: int) -> None:
    """Do what only a rank needs; once per process."""
    from . import logs, permit, processes, prompt
    from .failures import attempt

    if not processes.claim():
        return
    attempt("logs", logs.redirect, directory, number)
    attempt("signal", permit.dump_on_signal, directory, number)
    attempt("debug", prompt.wait_for_debugger, directory)
