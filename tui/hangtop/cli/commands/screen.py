"""`hangtop`: the terminal app on a live session."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from hangtop.app import begin, diagnose, prepare, run_app
from hangtop.cli import config
from hangtop.cli.arguments.arguments import DEFAULTS, complete
from hangtop.cli.jobs.again import again
from hangtop.cli.jobs.targets import launchers, session_options, slurm_target
from hangtop.source.programs import Programs
from hangtop.source.slurm_jobs import SlurmJobs
from hangtop_core.attach.slurm.my_jobs import SeveralJobsError
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.ways.ways import SlurmTarget
from hangtop_core.errors import NoJobError
from hangtop_core.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.keys.keymap import Keymap
    from hangtop_core.attach.slurm.my_jobs import ListedJob


def run(arguments: argparse.Namespace) -> int:
    """Open the app; return when the user leaves it."""
    arguments = complete(arguments, sample_early=1.0)
    keymap = config.keymap(config.config_path())
    while True:
        programs = Programs()
        slurm, status = _look(arguments, keymap, programs)
        if programs.chosen is not None:
            arguments = on_program(arguments, programs.chosen)
        elif slurm is not None and slurm.chosen is not None:
            arguments = on_job(arguments, slurm.chosen)
        else:
            return status


def on_job(arguments: argparse.Namespace, job: str) -> argparse.Namespace:
    """Return these arguments with another Slurm job in place of their target."""
    values = {key: value for key, value in vars(arguments).items() if key != "slurm"}
    places = {key: DEFAULTS[key] for key in (*config.WHERE, "exclude", "pid", "job_key")}
    given = arguments.given - places.keys() | {"job"}
    return argparse.Namespace(**{**values, **places, "job": job, "given": given})


def on_program(arguments: argparse.Namespace, pid: int) -> argparse.Namespace:
    """Return these arguments with one program named, on the same nodes."""
    values = {**vars(arguments), "pid": [pid], "job_key": None}
    return argparse.Namespace(**{**values, "given": arguments.given | {"pid"}})


def _look(
    arguments: argparse.Namespace, keymap: Keymap, programs: Programs
) -> tuple[SlurmJobs | None, int]:
    """Open the app once; return the exit status, and the job or program to open next."""
    jobs: Sequence[ListedJob] = ()
    try:
        nodes = launchers(arguments)
    except SeveralJobsError as error:
        jobs, arguments.slurm = error.jobs, SlurmTarget(None)
        nodes = launchers(arguments)
    job = slurm_target(arguments).job
    slurm = SlurmJobs(job.name if job else None, jobs) if shutil.which("squeue") else None
    if arguments.pid and all(isinstance(launcher, LocalLauncher) for launcher in nodes):
        check_running(arguments.pid)
    prepare()  # before the session starts: without a terminal there is no reason to observe
    begin()
    with Session(session_options(arguments), diagnose, nodes) as session:
        return slurm, run_app(
            session,
            ascii=arguments.ascii,
            light=arguments.light,
            mouse=arguments.mouse,
            job_key=arguments.job_key,
            notice="; ".join(slurm_target(arguments).notices),
            keymap=keymap,
            nettest=again(arguments, "nettest"),
            slurm=slurm,
            programs=programs,
        )


def check_running(pids: Sequence[int]) -> None:
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
