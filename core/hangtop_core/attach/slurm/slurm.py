"""Data of a Slurm job: its nodes, user and state, from `squeue`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.attach.slurm import squeue
from hangtop_core.attach.slurm.my_jobs import my_job
from hangtop_core.attach.ways.targets import Names
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASKED = re.compile(
    r"(?P<job>\d{1,10})(?:_(?P<task>\d{1,10})|\+(?P<part>\d{1,6}))?"
    r"(?:\.(?P<step>\d{1,10}|batch|extern|interactive))?"
)
MINE = "mine"
"""Value instead of a number: the only running job of this user."""
_COLUMNS = "%A|%i|%F|%U|%u|%T|%N|%r"
_ROW = re.compile(
    rf"(?P<id>\d{{1,10}})\|(?P<shown>{squeue.SHOWN})"
    r"\|(?P<first>\d{1,10})\|(?P<uid>\d{1,10})\|(?P<user>[^|]{0,256})\|(?P<state>[A-Z_]{1,40})"
    r"\|(?P<nodes>[^|]*)\|(?P<reason>.*)"
)
_NODES = re.compile(r"[A-Za-z0-9_.,\[\]-]*")


class Part(Struct, frozen=True):
    """Nodes that are reached in one way: a job, or one component of a heterogeneous one."""

    nodes: tuple[str, ...]
    component: int | None = None


class SlurmJob(Struct, frozen=True):
    """A job that has processes on nodes."""

    name: str
    """Name as people write it: ``123``, ``123_4``, ``123+0``, ``123.0``."""
    id: str
    """The number that srun takes: that of the job, or of the leader of its components."""
    ids: tuple[str, ...]
    """Possible values of SLURM_JOB_ID in its processes."""
    uid: int
    user: str
    state: str
    parts: tuple[Part, ...]
    step: str | None = None
    """The only step to observe, if one was named."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return all nodes, each once."""
        return tuple(dict.fromkeys(node for part in self.parts for node in part.nodes))


class _Row(NamedTuple):
    id: str
    shown: str
    uid: int
    user: str
    state: str
    nodes: str
    reason: str


def find_job(asked: str) -> SlurmJob:
    """Return the job that ``asked`` names: ``123``, ``123_4``, ``123+0``, ``123.0``, or ``mine``.

    Raises:
        UsageError: there is no Slurm, no such job, or the job has no processes (any more).
    """
    asked = my_job() if asked == MINE else asked
    match = _ASKED.fullmatch(asked)
    if match is None:
        raise UsageError(
            f"--job: {clean(asked, 60)!r} is no Slurm job",
            "A job is a number: 123; 123_4 is of an array, 123+0 a component, 123.0 a step. "
            "Yours, where only one runs: --job mine",
        )
    base = asked.partition(".")[0]
    rows = _rows(squeue.ask(asked, "-t", "all", "-j", base.partition("+")[0], "-o", _COLUMNS))
    rows = _chosen(rows, base, asked)
    if not rows:
        raise squeue.unknown(asked)
    for row in rows:
        _check_state(row, asked)
    first = rows[0]
    step = match["step"]
    names = Names()
    parts = tuple(Part(_nodes(row.nodes, names), _component(row.shown)) for row in rows)
    if step is not None:
        parts = _of_step(parts, first.shown.partition("+")[0], asked, step)
    leader = first.shown.partition("+")[0] if "+" in first.shown else first.id
    return SlurmJob(
        name=asked,
        id=leader,
        ids=tuple(dict.fromkeys([leader, *(row.id for row in rows)])),
        uid=first.uid,
        user=clean(first.user, 60),
        state=first.state,
        parts=parts,
        step=step,
    )


def own_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the job that this shell is part of, as `find_job` takes it, or None."""
    task = f"{environ.get('SLURM_ARRAY_JOB_ID', '')}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    if _ASKED.fullmatch(task):
        return task
    job = environ.get("SLURM_JOB_ID", "")
    return job if job.isdecimal() and _ASKED.fullmatch(job) else None


def visibility(job: SlurmJob, uid: int | None = None) -> str | None:
    """Return what will not be visible of another user's job; None when nothing is withheld.

    Slurm 22.05 also refuses root steps in other users' jobs.
    """
    uid = os.geteuid() if uid is None else uid
    if uid == job.uid:
        return None
    ownership = f"job {job.name} is {job.user}'s: srun starts something in it for {job.user} only"
    if uid == 0:
        return f"{ownership}, not for root; by ssh all of it is visible"
    return (
        f"{ownership}, nodes may refuse your login, and of its processes only names and states are "
        f"visible, not stacks or environments. Run hangtop as {job.user}, or as root by ssh."
    )


def _rows(text: str) -> list[_Row]:
    rows = []
    for line in text.splitlines():
        match = _ROW.fullmatch(line)
        if match is None:
            raise squeue.unreadable(line)
        rows.append(
            _Row(
                match["id"],
                match["shown"],
                int(match["uid"]),
                match["user"],
                match["state"],
                match["nodes"],
                match["reason"],
            )
        )
    return rows


def _chosen(rows: Sequence[_Row], base: str, asked: str) -> list[_Row]:
    """Return the rows that ``base`` means: squeue lists all components and tasks of an array."""
    exact = [row for row in rows if row.shown == base]
    if "_" in base or "+" in base or exact:
        return exact
    by_number = [row for row in rows if row.id == base]
    tasks = [row for row in rows if "_" in row.shown]
    if tasks:
        _check_single(tasks, bool(by_number), asked)
        return tasks
    # The number of the leader means all components; that of another component only this one.
    leading = [row for row in rows if row.shown.partition("+")[0] == base]
    return leading or by_number


def _check_single(tasks: Sequence[_Row], by_number: bool, asked: str) -> None:
    if len(tasks) == 1 and by_number:
        return
    shown = ", ".join(row.shown for row in tasks[:20])
    raise UsageError(
        f"job {asked} is an array; its tasks are jobs of their own",
        f"Choose one: --job {shown}",
    )


def _check_state(row: _Row, asked: str) -> None:
    if row.state in squeue.RUNNING:
        return
    if row.state in squeue.WAITING:
        why = f" ({clean(row.reason, 80)})" if row.reason not in ("", "None") else ""
        raise UsageError(
            f"job {asked} has not started: {row.state}{why}",
            f"`squeue -j {asked} --start` says when it may. Nothing of it runs as yet.",
        )
    raise UsageError(
        f"job {asked} has ended: {row.state}",
        f"`scontrol show job {asked}` and `sacct -j {asked}` say how. Nothing is left to see.",
    )


def _component(shown: str) -> int | None:
    _, plus, number = shown.partition("+")
    return int(number) if plus else None


def _nodes(folded: str, names: Names) -> tuple[str, ...]:
    if not folded or not _NODES.fullmatch(folded):
        raise UsageError(f"squeue names no nodes that can be read: {clean(folded, 80)!r}")
    return names.add(folded, "--job")


def _of_step(parts: tuple[Part, ...], job: str, asked: str, step: str) -> tuple[Part, ...]:
    text = squeue.ask(asked, "-s", f"{job}.{step}", "-o", "%N").strip()
    if not text:
        raise UsageError(
            f"job {asked.partition('.')[0]} has no step {step} now",
            f"`squeue -s -j {asked.partition('.')[0]}` lists its steps.",
        )
    names = Names()
    nodes = {node for line in text.splitlines() for node in _nodes(line.strip(), names)}
    kept = (Part(tuple(n for n in part.nodes if n in nodes), part.component) for part in parts)
    return tuple(part for part in kept if part.nodes)
