"""`hangtop`: the terminal app on a live session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hangtop.cli.arguments import complete, session_options
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.errors import HangtopError
from hangtop_core.session import Session

if TYPE_CHECKING:
    import argparse


class NoTerminalError(HangtopError):
    """The app was started where it cannot be drawn."""

    HELP = (
        "Without a terminal, use one of:\n"
        "    hangtop diagnose     who holds the job up, and why\n"
        "    hangtop dump         the stacks of all ranks"
    )


def run(arguments: argparse.Namespace) -> int:
    """Open the app; returns when the user leaves it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminalError("this is no terminal")
    arguments = complete(arguments)
    from hangtop.app import run_app

    with Session(session_options(arguments), diagnose) as session:
        run_app(session, ascii=arguments.ascii, mouse=arguments.mouse, job_key=arguments.job_key)
    return 0
