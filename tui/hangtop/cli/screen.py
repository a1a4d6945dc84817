"""`hangtop`: the terminal app on a live session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.app import prepare, run_app
from hangtop.cli import config
from hangtop.cli.again import again
from hangtop.cli.arguments import complete, session_options
from hangtop.cli.targets import launchers, slurm_target
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session import Session

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Open the app; returns when the user leaves it."""
    arguments = complete(arguments, sample_early=1.0)
    keymap = config.keymap(config.config_path())
    nodes = launchers(arguments)
    prepare()  # before the session starts: without a terminal there is nothing to observe for
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
