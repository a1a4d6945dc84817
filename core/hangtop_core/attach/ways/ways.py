"""Choice of a way to each node: from the target options to a launcher for every node.

Texts of errors name options of the command; `hangtop_core.attach` has parameters of the same names.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from hangtop_core.attach.clusters import kube
from hangtop_core.attach.slurm.slurm import SlurmJob, find_job, own_job, visibility
from hangtop_core.attach.slurm.srun import srun_launchers
from hangtop_core.attach.ways.command import EXAMPLE, CommandLauncher, Template
from hangtop_core.attach.ways.either import EitherLauncher, SshRefusals
from hangtop_core.attach.ways.local import LocalLauncher, is_here
from hangtop_core.attach.ways.pdsh import PdshChannel, PdshLauncher
from hangtop_core.attach.ways.ssh import Jumps, Login, SshLauncher
from hangtop_core.attach.ways.targets import select
from hangtop_core.errors import UsageError
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.connect.launcher import Launcher

Via = Literal["auto", "ssh", "srun", "pdsh", "command", "local"]
PUSH_EVERY_S = 2.0
"""Minimum seconds between two process tables over pdsh."""


class Targets(Struct, frozen=True):
    """Nodes and how to reach them. Without any: this machine, or this shell's Slurm job."""

    nodes: tuple[str, ...] = ()
    """Node sets."""
    exclude: tuple[str, ...] = ()
    hostfiles: tuple[Path, ...] = ()
    job: str | None = None
    """A Slurm job."""
    via: Via = "auto"
    command: str | None = None
    """A template in the form of `Template`."""
    kube: str | None = None
    """Pods in the form of `kube.parse`."""
    cluster: tuple[str, ...] = ()
    """All nodes of a (Ray) cluster, from which `nodes` and `exclude` choose."""
    login: Login = Login()
    pids: tuple[int, ...] = ()
    usual: frozenset[str] = frozenset()
    """Options from a config file, which need not have an effect here."""


class SlurmTarget(NamedTuple):
    """The observed Slurm job, if any, and notices about its limits."""

    job: SlurmJob | None
    notices: tuple[str, ...] = ()
    """Notices of a sentence or two each."""

    @property
    def is_foreign(self) -> bool:
        """Return whether it belongs to another user, so that its processes do, too."""
        return self.job is not None and self.job.uid != os.geteuid()


def slurm_target(targets: Targets) -> SlurmTarget:
    """Return the Slurm job that is named, or that contains this shell; Slurm is asked for it.

    Raises:
        UsageError: the requested job has no processes, or cannot be found.
    """
    if targets.kube is not None or targets.cluster:
        return SlurmTarget(None)
    if targets.job is not None:
        job = find_job(targets.job)
        return SlurmTarget(job, _notices(job))
    own = own_job()
    if targets.via == "srun":
        if own is None:
            raise UsageError("--via srun needs a Slurm job", "Name it: --job 123")
        job = find_job(own)
    else:
        elsewhere = targets.nodes or targets.hostfiles or targets.pids
        if own is None or targets.via == "local" or elsewhere:
            return SlurmTarget(None)
        try:
            job = find_job(own)
        except UsageError as error:
            text = f"SLURM_JOB_ID is set, but {error}; looking at this machine"
            return SlurmTarget(None, (text,))
        if all(is_here(node) for node in job.nodes):
            return SlurmTarget(None)
    where = f"its {plural(len(job.nodes), 'node')} {nodesets.fold(job.nodes)}"
    text = f"this shell is in Slurm job {job.name}; looking at {where} (--via local: at this "
    return SlurmTarget(job, (f"{text}machine only)", *_notices(job)))


def _notices(job: SlurmJob) -> tuple[str, ...]:
    state = f"Slurm job {job.name} is {job.state}" if job.state != "RUNNING" else None
    return tuple(text for text in (state, visibility(job)) if text is not None)


def launchers(
    targets: Targets, job: SlurmJob | None, watch: Mapping[str, Any] | None
) -> list[Launcher]:
    """Return a launcher for every chosen node; for this machine where none is named.

    Args:
        targets: the target options.
        job: the result of `slurm_target`.
        watch: parameters of the request `watch`, for probes without an input; None where nothing is
            watched.

    Raises:
        UsageError: an option cannot be used, or contradicts another one.
    """
    login = targets.login.check()
    if targets.kube is not None:
        return _of_pods(targets, targets.kube)
    via = targets.via
    if via == "auto" and targets.command is not None:
        via = "command"
    if job is None and not any((targets.nodes, targets.hostfiles, targets.cluster)):
        _refuse_what_has_no_effect(targets)
        return [LocalLauncher()]
    if job is not None and via not in ("pdsh", "command"):
        return _of_job(targets, job)
    names = _named(targets, job)
    if via == "local":
        _refuse_remote(names, "")
        return [LocalLauncher()]
    if via == "command":
        return _by_command(targets, names)
    local_names = set() if _names_login(targets, login) else set(filter(is_here, names))
    by_shell = _by_shell(via, [name for name in names if name not in local_names], login, watch)
    return [LocalLauncher(name) if name in local_names else by_shell[name] for name in names]


def _names_login(targets: Targets, login: Login) -> bool:
    """Return whether an option is about logins, so that this machine gets a login, too."""
    given = {"via": targets.via != "auto", "user": login.user is not None, "sudo": login.sudo}
    return any(value and key not in targets.usual for key, value in given.items())


def _refuse_remote(names: Sequence[str], of: str) -> None:
    remote = next((name for name in names if not is_here(name)), None)
    if remote is not None:
        raise UsageError(f"--via local: {remote}{of} is another machine")


def _named(targets: Targets, job: SlurmJob | None) -> tuple[str, ...]:
    """Return the named nodes; of a job or a cluster all nodes where none is named."""
    among = job.nodes if job is not None else targets.cluster
    if among and not targets.nodes and not targets.hostfiles:
        return select([",".join(among)], targets.exclude, [])
    names = select(targets.nodes, targets.exclude, targets.hostfiles)
    outside = set(names).difference(among) if among else set()
    if outside:
        whole = f"job {job.name}" if job is not None else "this cluster"
        raise UsageError(
            f"{nodesets.fold(outside)} is not of {whole}", f"Its nodes: {nodesets.fold(among)}"
        )
    return names


def _of_job(targets: Targets, job: SlurmJob) -> list[Launcher]:
    names, login = _named(targets, job), targets.login
    if targets.via == "local":
        _refuse_remote(names, f" of job {job.name}")
        return [LocalLauncher(name) for name in names]
    if targets.via == "srun":
        if login.user is not None:
            raise UsageError("--via srun runs as the job's user, not as another: leave out --user")
        return list(srun_launchers(job, login, names))
    by_ssh = _by_ssh(names, login)
    if targets.via == "ssh":
        return [by_ssh[name] for name in names]
    reached: dict[str, Launcher] = {**by_ssh}
    if login.user is None and shutil.which("srun") is not None:
        reached |= _by_srun(job, login, by_ssh)
    if login.user is None and not login.sudo:
        reached |= {name: LocalLauncher(name) for name in names if is_here(name)}
    return [reached[name] for name in names]


def _by_ssh(names: Sequence[str], login: Login) -> dict[str, SshLauncher]:
    jumps = Jumps(login.user)
    return {name: SshLauncher(name, login, jumps.of(name)) for name in names}


def _by_srun(job: SlurmJob, login: Login, by_ssh: Mapping[str, SshLauncher]) -> dict[str, Launcher]:
    """Return a launcher by srun for each node, combined with ssh where that exists."""
    refusals, has_ssh = SshRefusals(), shutil.which("ssh") is not None
    return {
        srun.node: EitherLauncher(by_ssh[srun.node], srun, refusals) if has_ssh else srun
        for srun in srun_launchers(job, login, tuple(by_ssh))
    }


def _by_shell(
    via: Via, names: Sequence[str], login: Login, watch: Mapping[str, Any] | None
) -> dict[str, Launcher]:
    if not names:
        return {}
    if _remote_shell(via) == "pdsh":
        if watch is not None:
            watch = {**watch, "interval": max(watch["interval"], PUSH_EVERY_S)}
        channel = PdshChannel(names, login, watch)
        return {name: PdshLauncher(name, channel) for name in names}
    return dict(_by_ssh(names, login))


def _remote_shell(via: Via) -> str:
    """Return ssh or pdsh: the requested one, else ssh where both exist.

    Raises:
        UsageError: it is not on this machine.
    """
    wanted = ("ssh", "pdsh") if via == "auto" else (via,)
    for program in wanted:
        if shutil.which(program):
            return program
    raise UsageError(
        f"there is no {' and no '.join(wanted)} on this machine to reach nodes with",
        "Install one (openssh-client, pdsh), or name a command that reaches them: --command.",
    )


def _by_command(targets: Targets, names: Sequence[str]) -> list[Launcher]:
    if targets.command is None:
        raise UsageError("--via command needs the command", EXAMPLE)
    if targets.login.user is not None:
        raise UsageError("--user has no effect with --command: say it in the command")
    template = Template(targets.command)
    if len(names) > 1 and not template.names_node:
        raise UsageError(f"--command: no %h in it, so {len(names)} nodes would be one", EXAMPLE)
    return [CommandLauncher(name, targets.login, template) for name in names]


def _of_pods(targets: Targets, pods: str) -> list[Launcher]:
    """Return a launcher for each pod; `nodes` and `exclude` choose among them."""
    given = {
        "job": targets.job,
        "hostfile": targets.hostfiles,
        "command": targets.command,
        "via": targets.via != "auto",
        "user": targets.login.user,
    }
    for option, value in given.items():
        if value and option not in targets.usual:
            raise UsageError(f"--{option} has no effect with --kube, which has a way of its own")
    by_name = {launcher.node: launcher for launcher in kube.launchers(pods, targets.login)}
    names = select(targets.nodes or [",".join(by_name)], targets.exclude, [])
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(f"{nodesets.fold(unknown)} is none of these pods")
    return [by_name[name] for name in names]


def _refuse_what_has_no_effect(targets: Targets) -> None:
    """Raise an error for an option that needs nodes, instead of ignoring it silently."""
    given = {
        "exclude": targets.exclude,
        "via": targets.via not in ("auto", "local"),
        "user": targets.login.user,
        "init": targets.login.init,
        "command": targets.command is not None,
        "sudo": targets.login.sudo,
    }
    for option, value in given.items():
        if value and option not in targets.usual:
            raise UsageError(f"--{option} needs nodes: -w NODES, --hostfile FILE or --job ID")
