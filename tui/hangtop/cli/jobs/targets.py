"""Launchers from target options; notes about them go to stderr."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hangtop.cli.jobs import headnode
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine
from hangtop_core.attach.clusters import ray_nodes
from hangtop_core.attach.clusters.kube import KubeLauncher, summary
from hangtop_core.attach.slurm.slurm import own_job
from hangtop_core.attach.ways import ways
from hangtop_core.attach.ways.pdsh import NOTE, PdshLauncher
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.attach.ways.ways import SlurmTarget, Targets
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.session.session import Options


def launchers(arguments: argparse.Namespace, watch: bool = True) -> list[Launcher]:
    """Return a launcher for every node the options name; without any, for this machine.

    ``watch`` says whether the session will watch, as in `Options`.

    Raises:
        UsageError: an option cannot be used.
    """
    targets = _targets(arguments)
    job = slurm_target(arguments).job
    asked = session_options(arguments).watch_request() if watch else None
    with StatusLine() as status:
        if targets.kube is not None:
            status.show("asking Kubernetes ...")
        chosen = ways.launchers(targets, job, asked)
    redacting.of(arguments).learn_hosts(launcher.node for launcher in chosen)
    pods = [launcher for launcher in chosen if isinstance(launcher, KubeLauncher)]
    redacting.of(arguments).learn_hosts(
        dict.fromkeys(launcher.pod.spec.node_name for launcher in pods)
    )
    if pods:
        print(f"hangtop: looking at {summary(pods)}", file=sys.stderr)
    if any(isinstance(launcher, PdshLauncher) for launcher in chosen):
        print(f"hangtop: {NOTE}", file=sys.stderr)
    return chosen


def slurm_target(arguments: argparse.Namespace) -> SlurmTarget:
    """Return the target Slurm job, if any; Slurm is asked once, and the job announced on stderr.

    Raises:
        UsageError: the requested job has no processes, or does not exist.
        SeveralJobsError: no target is named, no rank runs locally, and there are several jobs.
    """
    if "slurm" not in arguments:
        targets = _targets(arguments)
        anywhere = headnode.applies(targets, arguments.subcommand)
        with StatusLine() as status:
            if arguments.job is not None or own_job() is not None or anywhere:
                status.show("asking Slurm ...")
            arguments.slurm = (
                headnode.target(arguments.all_users) if anywhere else ways.slurm_target(targets)
            )
        for text in arguments.slurm.notices:
            print(f"hangtop: {text}", file=sys.stderr)
    target: SlurmTarget = arguments.slurm
    return target


def _ray_nodes(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the nodes of the target Ray cluster, if any; Ray is asked once."""
    if arguments.ray is None:
        return ()
    if arguments.job is not None or arguments.kube is not None:
        raise UsageError("--ray, --job and --kube each name all nodes: leave out all but one")
    if "ray_nodes" not in arguments:
        with StatusLine() as status:
            status.show("asking Ray ...")
            arguments.ray_nodes = ray_nodes.ask(arguments.ray)
        print(f"hangtop: {arguments.ray_nodes.notice}", file=sys.stderr)
    names: tuple[str, ...] = arguments.ray_nodes.names
    return names


def _targets(arguments: argparse.Namespace) -> Targets:
    # Neither can log in as another user; a user named on the command line gets an error.
    command = arguments.via == "auto" and arguments.command is not None
    nobody = arguments.via in ("srun", "command") or command or arguments.kube is not None
    login = Login(
        user=None if nobody and "user" in arguments.from_file else arguments.user,
        python=arguments.python,
        init=arguments.init,
        sudo=arguments.sudo,
        connect_timeout=arguments.connect_timeout,
        fanout=arguments.fanout,
        fast_kex=arguments.fast_kex,
        keep=not getattr(arguments, "clean", False),
    )
    return Targets(
        nodes=tuple(arguments.nodes),
        exclude=tuple(arguments.exclude),
        hostfiles=tuple(arguments.hostfile),
        job=arguments.job,
        via=arguments.via,
        command=arguments.command,
        kube=arguments.kube,
        cluster=_ray_nodes(arguments),
        login=login.check(),
        pids=tuple(arguments.pid),
        usual=arguments.from_file,
    )


def session_options(arguments: argparse.Namespace) -> Options:
    """Return the options of a session."""
    from hangtop.cli.jobs.targets import slurm_target
    from hangtop_core.session.session import Options

    slurm = slurm_target(arguments)
    job = slurm.job
    return Options(
        interval=arguments.interval,
        sample_every=arguments.sample_every,
        sample_early=arguments.sample_early,
        hang_after=arguments.hang_after,
        all_users=arguments.all_users or slurm.is_foreign,
        pids=tuple(arguments.pid),
        readonly=arguments.readonly,
        slurm_jobs=job.ids if job is not None else (),
        slurm_step=job.step if job is not None else None,
    )
