"""What Slurm says about a job: its nodes, its user, its state, asked of `squeue`.

``squeue -h -o`` is read because every Slurm has it and its columns are chosen here; ``--json``
differs between versions, and ``scontrol`` has none in 22.05. What it prints is foreign text: every
column has a form, and a line that does not have it is an error, never a guess.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core import bounded
from hangtop_core.attach.targets import Names
from hangtop_core.errors import UsageError
from hangtop_core.text import clean, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATIENCE_S = 20.0
"""A busy slurmctld takes its time; squeue itself gives up after about as long."""
MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes that squeue may print."""

RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
"""States in which a job has processes on its nodes."""
WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    }
)

_ASKED = re.compile(
    r"(?P<job>\d{1,10})(?:_(?P<task>\d{1,10})|\+(?P<part>\d{1,6}))?"
    r"(?:\.(?P<step>\d{1,10}|batch|extern|interactive))?"
)
MINE = "mine"
"""Instead of a number: the one job of this user that runs."""
_MINE = "%i|%M|%D|%j"
_LISTED = re.compile(
    r"(?P<shown>\d{1,10}(?:_\d{1,10}|\+\d{1,6})?)\|(?P<time>[\d:.-]{1,40}|INVALID)"
    r"\|(?P<nodes>\d{1,7})\|(?P<name>.*)"
)
MAX_LISTED = 20
"""Jobs of this user that are named where several run."""
_COLUMNS = "%A|%i|%F|%U|%u|%T|%N|%r"
_ROW = re.compile(
    r"(?P<id>\d{1,10})\|(?P<shown>\d{1,10}(?:_(?:\d{1,10}|\[[0-9,%:.\-]*\])|\+\d{1,6})?)"
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
    """As people write it: ``123``, ``123_4``, ``123+0``, ``123.0``."""
    id: str
    """The number srun takes: that of the job, or of the leader of its components."""
    ids: tuple[str, ...]
    """What SLURM_JOB_ID may be in its processes."""
    uid: int
    user: str
    state: str
    parts: tuple[Part, ...]
    step: str | None = None
    """Only this step of it."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, each once."""
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
        UsageError: when there is no Slurm, no such job, or one that has no processes (any more).
    """
    asked = _mine() if asked == MINE else asked
    match = _ASKED.fullmatch(asked)
    if match is None:
        raise UsageError(
            f"--job: {clean(asked, 60)!r} is no Slurm job",
            "A job is a number: 123; 123_4 is of an array, 123+0 a component, 123.0 a step. "
            "Yours, where only one runs: --job mine",
        )
    base = asked.partition(".")[0]
    rows = _rows(_squeue(asked, "-t", "all", "-j", base.partition("+")[0], "-o", _COLUMNS))
    rows = _chosen(rows, base, asked)
    if not rows:
        raise _unknown(asked)
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


def _mine() -> str:
    """Return the number of the one job of this user that runs.

    Raises:
        UsageError: none runs, or several, which are listed, or a line cannot be read.
    """
    text = _squeue(MINE, "-t", "running", "-u", str(os.geteuid()), "-o", _MINE)
    found: dict[str, list[re.Match[str]]] = {}  # by job: the components of one are rows
    for line in filter(None, text.split("\n")):
        match = _LISTED.fullmatch(line)
        if match is None:
            raise _unreadable(line)
        found.setdefault(match["shown"].partition("+")[0], []).append(match)
    if not found:
        raise UsageError("--job mine: no job of yours runs", "`squeue --me` lists those that wait.")
    if len(found) > 1:
        listed = [_in_words(job, rows) for job, rows in list(found.items())[:MAX_LISTED]]
        more = [f"  and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
        raise UsageError(f"{len(found)} jobs of yours run", "\n".join([*listed, *more]))
    ((job, rows),) = found.items()
    return job if len(rows) > 1 else rows[0]["shown"]


def _in_words(job: str, rows: Sequence[re.Match[str]]) -> str:
    first = min(rows, key=lambda row: _component(row["shown"]) or 0)
    nodes = plural(sum(int(row["nodes"]) for row in rows), "node")
    return f"  --job {job}  {clean(first['name'], 40)}, for {first['time']}, {nodes}"


def own_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the job that this shell is part of, as `find_job` takes it, or None."""
    task = f"{environ.get('SLURM_ARRAY_JOB_ID', '')}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    if _ASKED.fullmatch(task):
        return task
    job = environ.get("SLURM_JOB_ID", "")
    return job if job.isdecimal() and _ASKED.fullmatch(job) else None


def visibility(job: SlurmJob, uid: int | None = None) -> str | None:
    """Say what will not be visible of somebody else's job; None when nothing is withheld.

    Slurm 22.05 refuses steps in other users' jobs to root, too.
    """
    uid = os.geteuid() if uid is None else uid
    if uid == job.uid:
        return None
    told = f"job {job.name} is {job.user}'s: srun starts something in it for {job.user} only"
    if uid == 0:
        return f"{told}, not for root; by ssh all of it is visible"
    return (
        f"{told}, nodes may refuse your login, and of its processes only names and states are "
        f"visible, not stacks or environments. Run hangtop as {job.user}, or as root by ssh."
    )


def _squeue(asked: str, *options: str) -> str:
    argv = ["squeue", "-h", *options]
    # Columns and times as asked for here, whatever the user's own squeue looks like.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = bounded.run(argv, PATIENCE_S, MAX_OUTPUT, environ)
    except FileNotFoundError:
        raise UsageError(
            "--job needs Slurm's squeue, and there is none on this machine",
            "Run hangtop where you submit jobs, or name the nodes: -w NODES",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"Slurm does not answer: squeue took more than {PATIENCE_S:.0f} s",
            "`scontrol ping` says whether its controller is up. The nodes can be named: -w NODES",
        ) from None
    except bounded.TooMuchOutputError:
        raise UsageError(
            f"squeue printed more than {MAX_OUTPUT >> 20} MiB about job {asked}",
            "Name the nodes: -w NODES",
        ) from None
    except OSError as error:
        raise UsageError(f"squeue cannot be run: {error.strerror}") from error
    if done.code:
        said = done.err.strip()
        if "Invalid job id" in said:
            raise _unknown(asked)
        raise UsageError(f"squeue failed: {clean(said.rpartition(chr(10))[2], 200)}")
    return done.out


def _rows(text: str) -> list[_Row]:
    found = []
    for line in text.splitlines():
        match = _ROW.fullmatch(line)
        if match is None:
            raise _unreadable(line)
        found.append(
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
    return found


def _chosen(rows: Sequence[_Row], base: str, asked: str) -> list[_Row]:
    """Leave the rows that ``base`` means: squeue lists all components, all tasks of an array."""
    exact = [row for row in rows if row.shown == base]
    if "_" in base or "+" in base or exact:
        return exact
    tasks = [row for row in rows if "_" in row.shown]
    by_number = [row for row in rows if row.id == base]
    if tasks and not (len(tasks) == 1 and by_number):
        shown = ", ".join(row.shown for row in tasks[:20])
        raise UsageError(
            f"job {asked} is an array; its tasks are jobs of their own",
            f"Choose one: --job {shown}",
        )
    if tasks:
        return tasks
    # The number of the leader means all components; that of another component only this one.
    leading = [row for row in rows if row.shown.partition("+")[0] == base]
    return leading or by_number


def _check_state(row: _Row, asked: str) -> None:
    if row.state in RUNNING:
        return
    if row.state in WAITING:
        why = f" ({clean(row.reason, 80)})" if row.reason not in ("", "None") else ""
        raise UsageError(
            f"job {asked} has not started: {row.state}{why}",
            f"`squeue -j {asked} --start` says when it may. Nothing of it runs as yet.",
        )
    raise UsageError(
        f"job {asked} has ended: {row.state}",
        f"`scontrol show job {asked}` and `sacct -j {asked}` say how. Nothing is left to see.",
    )


def _unreadable(line: str) -> UsageError:
    return UsageError(f"squeue printed what cannot be read: {clean(line, 120)!r}")


def _unknown(asked: str) -> UsageError:
    return UsageError(
        f"Slurm knows no job {asked}",
        "It may have ended: Slurm forgets a job minutes after its end.\n"
        f"`squeue --me` lists your jobs, `sacct -j {asked.partition('+')[0]}` those that are over.",
    )


def _component(shown: str) -> int | None:
    _, plus, number = shown.partition("+")
    return int(number) if plus else None


def _nodes(folded: str, names: Names) -> tuple[str, ...]:
    if not folded or not _NODES.fullmatch(folded):
        raise UsageError(f"squeue names no nodes that can be read: {clean(folded, 80)!r}")
    return names.add(folded, "--job")


def _of_step(parts: tuple[Part, ...], job: str, asked: str, step: str) -> tuple[Part, ...]:
    text = _squeue(asked, "-s", f"{job}.{step}", "-o", "%N").strip()
    if not text:
        raise UsageError(
            f"job {asked.partition('.')[0]} has no step {step} now",
            f"`squeue -s -j {asked.partition('.')[0]}` lists its steps.",
        )
    names = Names()
    nodes = {node for line in text.splitlines() for node in _nodes(line.strip(), names)}
    kept = (Part(tuple(n for n in part.nodes if n in nodes), part.component) for part in parts)
    return tuple(part for part in kept if part.nodes)
