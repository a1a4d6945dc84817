"""`hangtop diagnose --ras`: whether NCCL's RAS may be asked, and through which node."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hangtop.cli.output.output import StatusLine
from hangtop_core.analysis.verdict.case import Case
from hangtop_core.collect.requests import RAS_S
from hangtop_core.errors import ReadOnlyError
from hangtop_core.jobs.following import follow
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job, Snapshot
    from hangtop_core.session.session import Session, Update

MAX_NODES = 3
"""Nodes to try while none can be asked; no further one is tried after a rank was asked."""
FOLD_S = 5.0
"""Seconds to wait until a report is merged into the update."""


def ask_ras(session: Session, job: Job, *, anyway: bool) -> None:
    """Ask through the first possible node, and wait until the verdicts include the answer.

    A problem is reported on stderr, and is a blind spot of the diagnosis.
    """
    update = session.latest
    now = follow(job, update.snapshot) if update is not None else None
    if update is None or now is None:
        return
    why = why_not(update, now, anyway=anyway)
    if why is not None:
        print(f"hangtop: NCCL's RAS was not asked: {why}", file=sys.stderr)
        return
    with StatusLine() as status:
        status.show("asking NCCL's RAS ...")
        for node, pids in list(now.pids().items())[:MAX_NODES]:
            try:
                report = session.ras(node, pids, anyway=anyway).result(RAS_S * 2)
            except (ReadOnlyError, TimeoutError) as error:
                print(f"hangtop: NCCL's RAS: {str(error) or 'no answer in time'}", file=sys.stderr)
                return
            if report.failure is not None:
                why = clean(report.failure)
                print(f"hangtop: NCCL's RAS on {node}: {why}", file=sys.stderr)
            if report.failure is None or report.asked:
                break
        session.wait(lambda update: _knows(job, update.snapshot), FOLD_S)


def why_not(update: Update, job: Job, *, anyway: bool) -> str | None:
    """Return why a job should not be asked now; None when it may be.

    A job that makes progress needs no help. The query can end a job that creates communicators, in
    all versions up to 2.30.7 (NCCL's issue 2346).
    """
    diagnosis = update.diagnoses.get(job.key)
    if diagnosis is None or diagnosis.state not in ("hung", "unknown"):
        return f"the job is not hung, but {diagnosis.state if diagnosis else 'not judged yet'}"
    waiters = Case(update.snapshot, job).waiters
    if not anyway and any(s.activity.kind in ("init", "new-group") for s in waiters):
        return (
            "ranks are making process groups, and to ask NCCL while it makes communicators can "
            "crash them; --ras=anyway does it all the same"
        )
    return None


def _knows(job: Job, snapshot: Snapshot) -> bool:
    now = follow(job, snapshot)
    return now is None or any(rank.ras is not None for rank in now.ranks)
