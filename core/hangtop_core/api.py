"""What `import hangtop_core` offers to programs and notebooks."""

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
"""As `hangtop diagnose`: what repeats is told from what stands still within seconds."""
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

    Nothing is read from hangtop's config file. What there is to say of a Slurm job (that it is
    somebody else's, say) is logged as a warning.

    Args:
        nodes: node sets such as ``gpu[1-4]``, ``n1,n2`` or ``@group``. Without any, and without
            ``hostfile`` and ``job``: this machine, or the nodes of the Slurm job that this process
            is part of.
        exclude: node sets that are left out.
        hostfile: a file that names nodes, one a line.
        job: a Slurm job: ``123``, ``123_4``, ``123+0``, ``123.0``, or ``mine``.
        via: how nodes are reached; ``auto`` is ssh for all but this machine.
        command: what reaches a node instead, ``%h`` being its name: ``kubectl exec -i %h --``.
        user: to log in as.
        python: Python 3.8 or newer, on the nodes.
        init: run in a node's shell first.
        sudo: be root there, by sudo without password.
        fanout: logins at the same time, at most.
        connect_timeout: seconds to log in.
        pids: only the jobs of these processes.
        all_users: jobs of other users, too.
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
    """Say how a job gets on, who is to blame and why, and what could not be seen.

    It is pure: of the same snapshot it says the same, wherever that comes from. Of a capture it is
    about the newest picture, and tells from those before what the job hung by until it ended: a
    snapshot alone of a job that has ended does not have that.

    Args:
        snapshot: of a session, or of a picture of a capture; or a whole capture.
        job: key of one of its jobs; without it the first, the largest and newest.
        hang_after: as for `attach`; of a capture, what it was taken with.

    Raises:
        UsageError: the snapshot has no job with this key.
    """
    pictures = snapshot.pictures if isinstance(snapshot, Capture) else ()
    seen = pictures[-1].snapshot if isinstance(snapshot, Capture) else snapshot
    found = seen.job(job)
    if found is None and job is not None:
        there = ", ".join(one.key for one in seen.jobs) or "none"
        raise UsageError(f"no job has the key {job!r}", f"There is: {there}")
    if isinstance(snapshot, Capture):
        newest = rejudge(pictures, hang_after or snapshot.header.hang_after)[-1]
        return newest.diagnoses[found.key if found is not None else ""]
    return engine.diagnose(seen, found, hang_after or HANG_AFTER_S)


def open_capture(path: str | Path) -> Capture:
    """Read a file of `hangtop capture`, as far as it goes: `Capture.cut` says where it does not.

    Args:
        path: of the file.

    Raises:
        BadCaptureError: it is no capture, or cannot be opened at all.
    """
    return capture.load(str(path))


def read_dumps(*paths: str | Path, prefix: str | None = None) -> FlightDiagnosis:
    """Read dumps of flight recorders, and say what they show.

    Args:
        paths: files, folders or patterns.
        prefix: what stands before the rank in names of files; without it told from the names.

    Raises:
        UsageError: a path does not exist.
        NoDumpError: no file there looks like a dump.
        StartError: a process to read them could not be started.
    """
    loaded = dumps.load([str(path) for path in paths], prefix)
    problems = [FileProblem(one.path, one.kind, one.why, one.rank) for one in loaded.problems]
    if not loaded.files and all(one.rank is None for one in loaded.problems):
        raise NoDumpError(f"no dumps in {', '.join(map(str, paths)) or 'no paths at all'}")
    return examine(loaded.traces, problems, loaded.files).diagnosis


def to_text(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """Return a diagnosis as `hangtop diagnose` and `hangtop flight` print it.

    Args:
        diagnosis: of `diagnose` or `read_dumps`.
        width: in characters.
    """
    if isinstance(diagnosis, FlightDiagnosis):
        return flight_text(diagnosis, width)
    return diagnosis_text(diagnosis, width)
