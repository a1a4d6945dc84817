"""From target options to launchers: which nodes, and how each is reached."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from hangtop.cli.arguments import session_options
from hangtop.cli.slurm import chosen, job_launchers, slurm_job
from hangtop_core.attach.command import EXAMPLE, CommandLauncher, Template
from hangtop_core.attach.local import LocalLauncher, is_here
from hangtop_core.attach.pdsh import NOTE, PdshChannel, PdshLauncher
from hangtop_core.attach.ssh import Jumps, Login, SshLauncher
from hangtop_core.attach.targets import select
from hangtop_core.errors import UsageError
from hangtop_core.watching import watching

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.local import Launcher

PUSH_EVERY_S = 2.0
"""Seconds between two looks over pdsh, at least."""


def launchers(arguments: argparse.Namespace, watch: bool = True) -> list[Launcher]:
    """Return a launcher for every node the options name; without any, for this machine.

    ``watch`` says whether the session will watch, as in `Options`.

    Raises:
        UsageError: when an option cannot be used.
    """
    via = arguments.via
    if via == "auto" and arguments.command is not None:
        via = "command"
    # Neither can log in as somebody else; who said so on the command line is told.
    nobody = via in ("srun", "command") and "user" in arguments.from_file
    login = Login(
        user=None if nobody else arguments.user,
        python=arguments.python,
        init=arguments.init,
        sudo=arguments.sudo,
        connect_timeout=arguments.connect_timeout,
        fanout=arguments.fanout,
        fast_kex=arguments.fast_kex,
        keep=not getattr(arguments, "clean", False),
    ).check()
    job = slurm_job(arguments)
    if job is None and not arguments.nodes and not arguments.hostfile:
        _refuse_what_has_no_effect(arguments)
        return [LocalLauncher()]
    if job is not None and via not in ("pdsh", "command"):
        return job_launchers(arguments, login, job)
    names = (
        chosen(arguments, job)
        if job is not None
        else select(arguments.nodes, arguments.exclude, arguments.hostfile)
    )
    if via == "local":
        other = next((name for name in names if not is_here(name)), None)
        if other is not None:
            raise UsageError(f"--via local: {other} is another machine")
        return [LocalLauncher()]
    if via == "command":
        return _by_command(arguments, names, login)
    given = {"via": via != "auto", "user": login.user is not None, "sudo": login.sudo}
    by_login = any(value and key not in arguments.from_file for key, value in given.items())
    here = {name for name in names if is_here(name) and not by_login}
    others = [name for name in names if name not in here]
    asked = watched(arguments) if watch else None
    reached = {name: LocalLauncher(name) for name in here} | _by_shell(via, others, login, asked)
    return [reached[name] for name in names]


def _by_shell(
    via: str, names: Sequence[str], login: Login, watch: Mapping[str, Any] | None
) -> dict[str, Launcher]:
    if not names:
        return {}
    if _remote_shell(via) == "pdsh":
        print(f"hangtop: {NOTE}", file=sys.stderr)
        channel = PdshChannel(names, login, watch)
        return {name: PdshLauncher(name, channel) for name in names}
    jumps = Jumps()
    return {name: SshLauncher(name, login, jumps.of(name)) for name in names}


def _remote_shell(via: str) -> str:
    """Return ssh or pdsh: the one asked for, else ssh where both are there.

    Raises:
        UsageError: when that is not on this machine.
    """
    wanted = ("ssh", "pdsh") if via == "auto" else (via,)
    for program in wanted:
        if shutil.which(program):
            return program
    raise UsageError(
        f"there is no {' and no '.join(wanted)} on this machine to reach nodes with",
        "Install one (openssh-client, pdsh), or name a command that reaches them: --command.",
    )


def watched(arguments: argparse.Namespace) -> dict[str, Any]:
    """What probes are told to watch that cannot be told later."""
    asked = watching(session_options(arguments)).request()
    return {**asked, "interval": max(arguments.interval, PUSH_EVERY_S)}


def _by_command(
    arguments: argparse.Namespace, names: Sequence[str], login: Login
) -> list[Launcher]:
    if arguments.command is None:
        raise UsageError("--via command needs the command", EXAMPLE)
    if login.user is not None:
        raise UsageError("--user has no effect with --command: say it in the command")
    template = Template(arguments.command)
    if len(names) > 1 and not template.names_node:
        raise UsageError(f"--command: no %h in it, so {len(names)} nodes would be one", EXAMPLE)
    return [CommandLauncher(name, login, template) for name in names]


def _refuse_what_has_no_effect(arguments: argparse.Namespace) -> None:
    """Say that an option for nodes needs nodes, rather than to ignore it silently."""
    given = {
        "exclude": arguments.exclude,
        "via": arguments.via not in ("auto", "local"),
        "user": arguments.user,
        "init": arguments.init,
        "command": arguments.command is not None,
        "sudo": arguments.sudo,
    }
    for option, value in given.items():
        if value and option not in arguments.from_file:
            raise UsageError(f"--{option} needs nodes: -w NODES, --hostfile FILE or --job ID")
