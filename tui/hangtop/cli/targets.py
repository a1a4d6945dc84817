"""From target options to launchers: which nodes, and how each is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.slurm import job_launchers, slurm_job
from hangtop_core.attach.local import LocalLauncher, is_here
from hangtop_core.attach.ssh import Jumps, Login, SshLauncher
from hangtop_core.attach.targets import select
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from hangtop_core.attach.local import Launcher


def launchers(arguments: argparse.Namespace) -> list[Launcher]:
    """Return a launcher for every node the options name; without any, for this machine.

    Raises:
        UsageError: when an option cannot be used.
    """
    login = Login(
        user=arguments.user,
        python=arguments.python,
        init=arguments.init,
        sudo=arguments.sudo,
        connect_timeout=arguments.connect_timeout,
        fanout=arguments.fanout,
        keep=not getattr(arguments, "clean", False),
    ).check()
    if (job := slurm_job(arguments)) is not None:
        return job_launchers(arguments, login, job)
    if not arguments.nodes and not arguments.hostfile:
        _refuse_what_has_no_effect(arguments)
        return [LocalLauncher()]
    names = select(arguments.nodes, arguments.exclude, arguments.hostfile)
    if arguments.via == "local":
        others = [name for name in names if not is_here(name)]
        if others:
            raise UsageError(f"--via local: {others[0]} is another machine")
        return [LocalLauncher()]
    jumps = Jumps()
    by_login = arguments.via == "ssh" or login.user is not None or login.sudo
    return [
        LocalLauncher(name)
        if is_here(name) and not by_login
        else SshLauncher(name, login, jumps.of(name))
        for name in names
    ]


def _refuse_what_has_no_effect(arguments: argparse.Namespace) -> None:
    """Say that an option for nodes needs nodes, rather than to ignore it silently."""
    given = {
        "--exclude": arguments.exclude,
        "--via ssh": arguments.via == "ssh",
        "--user": arguments.user,
        "--init": arguments.init,
        "--sudo": arguments.sudo,
    }
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} needs nodes: -w NODES, --hostfile FILE or --job ID")
