"""The functions that `import hangtop_core` offers to programs and notebooks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop_core import capture
from hangtop_core.analysis.flight.picture import FileProblem, FlightDiagnosis, examine
from hangtop_core.analysis.verdict import engine
from hangtop_core.attach.ways import ways
from hangtop_core.attach.ways.ssh import AT_ONCE, Login
from hangtop_core.attach.ways.ways import Targets, Via
from hangtop_core.capture import Capture
from hangtop_core.diagnosis import HANG_AFTER_S, Diagnosis, to_json
from hangtop_core.dumps import load as dumps
from hangtop_core.errors import HangtopError, NoDumpError, UsageError
from hangtop_core.judging.rejudging import rejudge
from hangtop_core.model.snapshot import Snapshot
from hangtop_core.model.updates import Options
from hangtop_core.report.diagnosis import WIDTH, diagnosis_text
from hangtop_core.report.flight import flight_text
from hangtop_core.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Capture",
    "Diagnosis",
    "HangtopError",
    "Session",
    "Snapshot",
    "attach",
    "diagnose",
    "open_capture",
    "read_dumps",
    "to_json",
    "to_text",
]

SAMPLE_EVERY_S = 1.0
"""Seconds between two stacks, as in `hangtop diagnose`: loops and blocked ranks are distinguished
within seconds."""
log = logging.getLogger(__name__)


def attach(
    nodes: str | Sequence[str] = (),
    *,
    exclude: str | Sequence[str] = (),
    hostfile: str | Path | None = None,
    job: str | None = None,
    via: Via = "auto",
    command: str | None = None,
    user: str | None = None,
    python: str = "python3",
    init: str | None = None,
    sudo: bool = False,
    fanout: int = AT_ONCE,
    connect_timeout: float = 10.0,
    pids: Sequence[int] = (),
    all_users: bool = False,
    hang_after: float = HANG_AFTER_S,
    readonly: bool = False,
) -> Session:
    """Begin to observe training jobs, and return at once; `Session.snapshot` waits.

    Hangtop's config file is not read. Notices about a Slurm job (that it belongs to another user,
    for example) are logged as warnings.

    Args:
        nodes: node sets such as ``gpu[1-4]``, ``n1,n2`` or ``@group``. Without any, and without
            ``hostfile`` and ``job``: this machine, or the nodes of the Slurm job that this process
            is part of.
        exclude: node sets that are left out.
        hostfile: a file that names nodes, one a line.
        job: a Slurm job: ``123``, ``123_4``, ``123+0``, ``123.0``, or ``mine``.
        via: how nodes are reached; ``auto`` is ssh for all but this machine.
        command: a command that reaches a node, ``%h`` being its name: ``kubectl exec -i %h --``.
        user: the user to log in as.
        python: Python 3.8 or newer, on the nodes.
        init: a command that is run in a node's shell first.
        sudo: become root on nodes, by sudo without password.
        fanout: maximum number of simultaneous logins.
        connect_timeout: seconds within which a login must succeed.
        pids: observe only the jobs of these processes.
        all_users: also observe jobs of other users.
        hang_after: seconds without progress after which a job that waits is called hung.
        readonly: refuse whatever could pause a process.

    Raises:
        UsageError: an argument cannot be used.
    """
    targets = Targets(
        nodes=_several(nodes),
        exclude=_several(exclude),
        hostfiles=() if hostfile is None else (Path(hostfile),),
        job=job,
        via=via,
        command=command,
        login=Login(user, python, init, sudo, connect_timeout, fanout),
        pids=tuple(pids),
    )
    return _begun(targets, hang_after, all_users, readonly)


def _begun(targets: Targets, hang_after: float, all_users: bool, readonly: bool) -> Session:
    slurm = ways.slurm_target(targets)
    for text in slurm.notices:
        log.warning("%s", text)
    options = Options(
        sample_every=SAMPLE_EVERY_S,
        hang_after=hang_after,
        all_users=all_users or slurm.is_foreign,
        pids=targets.pids,
        readonly=readonly,
        slurm_jobs=slurm.job.ids if slurm.job is not None else (),
        slurm_step=slurm.job.step if slurm.job is not None else None,
    )
    launchers = ways.launchers(targets, slurm.job, options.watch_request())
    session = Session(options, engine.diagnose, launchers)
    session.start()
    return session


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def diagnose(
    snapshot: Snapshot | Capture, job: str | None = None, *, hang_after: float | None = None
) -> Diagnosis:
    """Return how a job progresses, which ranks are the culprits and why, and the blind spots.

    The function is pure: equal snapshots give equal diagnoses, wherever they come from. The
    diagnosis of a capture is about its newest snapshot, and uses the earlier ones to say why the
    job hung until it ended: a single snapshot of an ended job cannot show that.

    Args:
        snapshot: a snapshot of a session or of a capture; or a whole capture.
        job: key of one of its jobs; without it the first, the largest and newest.
        hang_after: as for `attach`; for a capture, the value it was taken with by default.

    Raises:
        UsageError: the snapshot has no job with this key.
    """
    pictures = snapshot.pictures if isinstance(snapshot, Capture) else ()
    newest_snapshot = pictures[-1].snapshot if isinstance(snapshot, Capture) else snapshot
    chosen = newest_snapshot.job(job)
    if chosen is None and job is not None:
        keys = ", ".join(entry.key for entry in newest_snapshot.jobs) or "none"
        raise UsageError(f"no job has the key {job!r}", f"There is: {keys}")
    if isinstance(snapshot, Capture):
        newest = rejudge(pictures, hang_after or snapshot.header.hang_after)[-1]
        return newest.diagnoses[chosen.key if chosen is not None else ""]
    return engine.diagnose(newest_snapshot, chosen, hang_after or HANG_AFTER_S)


def open_capture(path: str | Path) -> Capture:
    """Read a file of `hangtop capture`; `Capture.cut` says where a damaged file ends.

    Args:
        path: path of the file.

    Raises:
        BadCaptureError: the file is no capture, or cannot be opened at all.
    """
    return capture.load(str(path))


def read_dumps(*paths: str | Path, prefix: str | None = None) -> FlightDiagnosis:
    """Read dumps of flight recorders, and diagnose them.

    Args:
        paths: files, folders or patterns.
        prefix: the part of file names before the rank; by default derived from the names.

    Raises:
        UsageError: a path does not exist.
        NoDumpError: no file there looks like a dump.
        StartError: a process to read them could not be started.
    """
    loaded = dumps.load([str(path) for path in paths], prefix)
    problems = [
        FileProblem(problem.path, problem.kind, problem.why, problem.rank)
        for problem in loaded.problems
    ]
    if not loaded.files and all(problem.rank is None for problem in loaded.problems):
        raise NoDumpError(f"no dumps in {', '.join(map(str, paths)) or 'no paths at all'}")
    return examine(loaded.traces, problems, loaded.files).diagnosis


def to_text(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """Return a diagnosis as `hangtop diagnose` and `hangtop flight` print it.

    Args:
        diagnosis: the result of `diagnose` or `read_dumps`.
        width: line width in characters.
    """
    if isinstance(diagnosis, FlightDiagnosis):
        return flight_text(diagnosis, width)
    return diagnosis_text(diagnosis, width)
