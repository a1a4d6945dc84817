"""The default target on a head node: this user's Slurm job, where no rank runs locally."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hangtop.app import diagnose
from hangtop_core.attach.slurm.my_jobs import only_job, running_jobs, what_became
from hangtop_core.attach.slurm.slurm import find_job, own_job
from hangtop_core.attach.slurm.squeue import NoSlurmError
from hangtop_core.attach.ways.local import LocalLauncher, is_here
from hangtop_core.attach.ways.ways import SlurmTarget
from hangtop_core.errors import UsageError
from hangtop_core.session.observing import CONNECT_S, LEAST_LOOK_S, answered, has_job
from hangtop_core.session.session import Options, Session
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from hangtop_core.attach.ways.ways import Targets

PATIENCE_S = 5.0
"""Seconds to wait for Slurm, which the user did not ask for; then this machine is observed."""


_OF_NODES = ("doctor", "nettest")
"""Commands that are about nodes, not about a job."""


def applies(targets: Targets, command: str | None) -> bool:
    """Return whether a command's options leave the target open, and Slurm is installed."""
    places = targets.nodes or targets.cluster or targets.hostfiles or targets.exclude
    processes = targets.pids or own_job() is not None
    is_plain = targets.via in ("auto", "ssh") and targets.command is None and targets.kube is None
    free = is_plain and targets.job is None and not places and not processes
    return free and command not in _OF_NODES and shutil.which("squeue") is not None


def target(all_users: bool) -> SlurmTarget:
    """Return this user's only running job, unless a rank runs on this machine.

    Raises:
        SeveralJobsError: there are several jobs.
    """
    try:
        jobs = running_jobs(PATIENCE_S)
    except NoSlurmError:
        return SlurmTarget(None)
    except UsageError as error:
        return SlurmTarget(None, (f"{error}; looking at this machine",))
    if not jobs:
        text = what_became(PATIENCE_S)
        return SlurmTarget(None, (f"{text}; looking at this machine",) if text else ())
    return SlurmTarget(None) if has_ranks_here(all_users) else _target_of(only_job(jobs).name)


def has_ranks_here(all_users: bool) -> bool:
    """Return whether this machine has a training job, after a short observation."""
    with Session(Options(all_users=all_users), diagnose, [LocalLauncher()]) as session:
        if session.wait(answered, CONNECT_S) is None:
            return False
        return session.wait(lambda update: has_job(update, None), LEAST_LOOK_S) is not None


def _target_of(name: str) -> SlurmTarget:
    try:
        job = find_job(name)
    except UsageError as error:  # the job ended meanwhile
        return SlurmTarget(None, (f"{error}; looking at this machine",))
    if all(is_here(node) for node in job.nodes):
        return SlurmTarget(None)
    where = f"its {plural(len(job.nodes), 'node')} {nodesets.fold(job.nodes)}"
    text = f"no rank runs here; looking at your Slurm job {job.name}, {where} (--via local: here)"
    return SlurmTarget(job, (text,))
