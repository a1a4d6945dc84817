"""`hangtop`: the terminal app on a live session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hangtop.app import begin, diagnose, prepare, run_app
from hangtop.cli import config
from hangtop.cli.again import again
from hangtop.cli.arguments import complete, session_options
from hangtop.cli.targets import launchers, slurm_target
from hangtop_core.attach.local import LocalLauncher
from hangtop_core.errors import NoJobError
from hangtop_core.session import Session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def run(arguments: argparse.Namespace) -> int:
    """Open the app; returns when the user leaves it."""
    arguments = complete(arguments, sample_early=1.0)
    keymap = config.keymap(config.config_path())
    nodes = launchers(arguments)
    if arguments.pid and all(isinstance(one, LocalLauncher) for one in nodes):
        there(arguments.pid)
    prepare()  # before the session starts: without a terminal there is nothing to observe for
    begin()
    with Session(session_options(arguments), diagnose, nodes) as session:
        return run_app(
            session,
            ascii=arguments.ascii,
            light=arguments.light,
            mouse=arguments.mouse,
            job_key=arguments.job_key,
            notice="; ".join(slurm_target(arguments).notices),
            keymap=keymap,
            nettest=again(arguments, "nettest"),
        )


def there(pids: Sequence[int]) -> None:
    """Check that one of these processes runs on this machine.

    Raises:
        NoJobError: none does, so that the screens would stay empty.
    """
    if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
        given = ", ".join(map(str, pids))
        raise NoJobError(
            f"no process has {'this id' if len(pids) == 1 else 'one of these ids'}: {given}",
            "`hangtop` without --pid looks for all jobs.",
        )
