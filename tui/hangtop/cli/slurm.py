"""Which Slurm job is looked at: the one that is named, or the one this shell is part of."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from hangtop.cli.output import StatusLine
from hangtop_core import nodesets
from hangtop_core.attach.either import Doors, EitherLauncher
from hangtop_core.attach.local import LocalLauncher, is_here
from hangtop_core.attach.slurm import find_job, own_job, visibility
from hangtop_core.attach.srun import srun_launchers
from hangtop_core.attach.ssh import Jumps, SshLauncher
from hangtop_core.attach.targets import select
from hangtop_core.errors import UsageError
from hangtop_core.text import plural

if TYPE_CHECKING:
    import argparse

    from hangtop_core.attach.local import Launcher
    from hangtop_core.attach.slurm import SlurmJob
    from hangtop_core.attach.ssh import Login


def slurm_job(arguments: argparse.Namespace) -> SlurmJob | None:
    """Return the job that is meant, or None; asked of Slurm once, and announced on stderr.

    Raises:
        UsageError: when a job is asked for that has no processes, or cannot be found.
    """
    if "slurm" not in arguments:
        arguments.slurm = _find(arguments)
        for text in notices(arguments):
            print(f"hangtop: {text}", file=sys.stderr)
    job: SlurmJob | None = arguments.slurm
    return job


def is_foreign(job: SlurmJob | None) -> bool:
    """Whether a job is somebody else's, so that only other users' processes can be its own."""
    return job is not None and job.uid != os.geteuid()


def notices(arguments: argparse.Namespace) -> list[str]:
    """What a user may not expect of the job that is looked at, a sentence or two each."""
    job: SlurmJob | None = arguments.slurm
    if job is None:
        return []
    found = []
    if arguments.job is None:
        found.append(
            f"this shell is in Slurm job {job.name}; looking at its {_nodes(job)} "
            "(--via local: at this machine only)"
        )
    if job.state != "RUNNING":
        found.append(f"Slurm job {job.name} is {job.state}")
    if (withheld := visibility(job)) is not None:
        found.append(withheld)
    return found


def _nodes(job: SlurmJob) -> str:
    return f"{plural(len(job.nodes), 'node')} {nodesets.fold(job.nodes)}"


def _asked(name: str) -> SlurmJob:
    with StatusLine() as status:
        status.show("asking Slurm ...")
        return find_job(name)


def _find(arguments: argparse.Namespace) -> SlurmJob | None:
    if arguments.job is not None:
        return _asked(arguments.job)
    own = own_job()
    if arguments.via == "srun":
        if own is None:
            raise UsageError("--via srun needs a Slurm job", "Name it: --job 123")
        return _asked(own)
    elsewhere = arguments.nodes or arguments.hostfile or arguments.pid
    if own is None or arguments.via == "local" or elsewhere:
        return None
    try:
        job = _asked(own)
    except UsageError as error:
        print(
            f"hangtop: SLURM_JOB_ID is set, but {error}; looking at this machine", file=sys.stderr
        )
        return None
    return None if all(is_here(node) for node in job.nodes) else job


def job_launchers(arguments: argparse.Namespace, login: Login, job: SlurmJob) -> list[Launcher]:
    """Return a launcher for every node of the job that is not excluded.

    Raises:
        UsageError: when an option names other nodes, or cannot be used with a job.
    """
    names = chosen(arguments, job)
    if arguments.via == "local":
        others = [name for name in names if not is_here(name)]
        if others:
            raise UsageError(f"--via local: {others[0]} of job {job.name} is another machine")
        return [LocalLauncher(name) for name in names]
    if arguments.via == "srun":
        if login.user is not None:
            raise UsageError("--via srun runs as the job's user, not as another: leave out --user")
        return list(srun_launchers(job, login, names))
    jumps = Jumps()
    by_ssh = {name: SshLauncher(name, login, jumps.of(name)) for name in names}
    if arguments.via == "ssh":
        return list(by_ssh.values())
    reached: dict[str, Launcher] = {**by_ssh}
    if login.user is None and shutil.which("srun") is not None:
        doors = Doors()
        for one in srun_launchers(job, login, names):
            first = by_ssh[one.node]
            reached[one.node] = EitherLauncher(first, one, doors) if shutil.which("ssh") else one
    if login.user is None and not login.sudo:
        reached |= {name: LocalLauncher(name) for name in names if is_here(name)}
    return [reached[name] for name in names]


def chosen(arguments: argparse.Namespace, job: SlurmJob) -> tuple[str, ...]:
    """The job's nodes, or those of them that are named."""
    if not arguments.nodes and not arguments.hostfile:
        return select([",".join(job.nodes)], arguments.exclude, [])
    names = select(arguments.nodes, arguments.exclude, arguments.hostfile)
    others = [name for name in names if name not in set(job.nodes)]
    if others:
        raise UsageError(
            f"{nodesets.fold(others)} is not of job {job.name}",
            f"Its nodes: {nodesets.fold(job.nodes)}",
        )
    return names
