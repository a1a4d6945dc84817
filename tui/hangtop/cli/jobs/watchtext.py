"""The output of `hangtop watch`: lines with the time in front, or JSON lines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from hangtop.cli.jobs.observe import ranks_of
from hangtop.cli.output.output import coloured, width
from hangtop_core.diagnosis import to_json
from hangtop_core.model.node.states import FAILED, OBSERVED
from hangtop_core.report.diagnosis import attempt_text, diagnosis_text, end_text, past_attempt_text
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, duration, plural, utc
from hangtop_core.text.commands import spelt_or_why

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hangtop.cli.output.redacting import Renamer
    from hangtop_core.diagnosis import PastAttempt, Verdict
    from hangtop_core.judging.hangs import Happened
    from hangtop_core.model.snapshot import Job, Node, Snapshot

SCHEMA = "hangtop.watch/1"
SURE = 0.8
"""Confidence from which the reason why a job ended is reported."""
AWAY_S = 30.0
"""Seconds after which a silent node is reported: many come back sooner."""


class Teller:
    """Prints each event once, with the requested names."""

    def __init__(self, renamer: Renamer, *, json: bool) -> None:
        self._renamer, self._json = renamer, json
        self._away: set[str] = set()
        """Nodes that were reported as lost."""
        self._hangs = 0
        self._lost = 0
        """Number of lines lost since the last successful one, because the disk was full."""

    def tell(self, event: Happened) -> None:
        """Report what happened to a job."""
        self._hangs += event.kind == "hang"
        if self._json:
            self._line(
                event.kind,
                event.at,
                job=job_data(event.job),
                diagnosis=event.diagnosis if tells_why(event) else None,
                after_s=None if event.after_s is None else round(event.after_s, 1),
            )
            return
        self._say(event.at, f"job {clean(event.job.name)} {sentence(event)}")
        if why := why_ended(event):
            self._say(event.at, f"    {why}")
        if event.kind == "hang" and event.diagnosis is not None:
            diagnosis = self._renamer.one(event.diagnosis)
            self._print(coloured(diagnosis_text(diagnosis, min(width(), 120))))

    def nodes(self, snapshot: Snapshot) -> None:
        """Report which nodes were lost or came back since the last time; grouped by state."""
        reasons: dict[tuple[str, str, str], list[str]] = {}
        back = []
        for node in snapshot.nodes:
            if node.state in OBSERVED and node.name in self._away:
                back.append(node.name)
            elif node.name not in self._away and _is_away(node, snapshot.at):
                key = (node.state, clean(node.reason or "no answer"), clean(node.fix or ""))
                reasons.setdefault(key, []).append(node.name)
        self._away.difference_update(back)
        if reasons or back:
            self._renamer.learn(snapshot)
        for (state, why, fix), names in reasons.items():
            self._away.update(names)
            folded = nodesets.fold(names)
            if self._json:
                self._line("nodes", snapshot.at, nodes=folded, state=state, reason=why, fix=fix)
            else:
                self._say(snapshot.at, f"{folded} {state}: {why}" + f"; {fix}" * bool(fix))
        if back:
            folded = nodesets.fold(back)
            if self._json:
                self._line("nodes", snapshot.at, nodes=folded, state="ready", reason="", fix="")
            else:
                self._say(snapshot.at, f"{folded} can be seen again")

    def wrote(self, directory: Path) -> None:
        """Report where a hang was written."""
        self._either("written", f"written to {directory}", directory=str(directory), why=None)

    def not_written(self, directory: Path, why: str) -> None:
        """Report that a hang could not be written."""
        text = f"cannot write to {directory}: {why}"
        self._either("written", text, directory=None, why=text)

    def ran(self, argv: Sequence[str], why: str | None) -> None:
        """Report how the command of --on-hang ended."""
        text = f"--on-hang {spelt_or_why(argv)}: {why or 'done'}"
        self._either("on-hang", text, command=list(argv), why=why)

    def clock_was_set(self, by: float) -> None:
        """Report that the clock jumped, or that the machine slept."""
        text = f"the clock was set {duration(abs(by))} {'ahead' if by > 0 else 'back'}; begun anew"
        self._either("clock", text, by_s=round(by, 1))

    def stopped(self) -> None:
        """Report that the command was stopped by a signal."""
        count = plural(self._hangs, "hang")
        self._either("stopped", f"told to stop; {count} seen", hangs=self._hangs)

    def _either(self, event: str, text: str, **data: Any) -> None:
        if self._json:
            self._line(event, time.time(), **data)
        else:
            self._say(time.time(), text)

    def _say(self, at: float, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        self._print(f"{stamp}  {self._renamer.text(text)}")

    def _line(self, event: str, at: float, **data: Any) -> None:
        renamed = self._renamer.data(data)
        whole = {"schema": SCHEMA, "event": event, "at": utc(at), **renamed}
        self._print(to_json(whole, indent=None).decode())

    def _print(self, text: str) -> None:
        """Print, unless the disk is full: watching goes on, and space may be freed.

        Raises:
            BrokenPipeError: the reader has exited.
        """
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            self._lost += 1

    def close(self) -> None:
        """Discard unprinted output, so that Python's own flush at exit does not fail."""
        try:
            sys.stdout.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        if self._lost:
            count = plural(self._lost, "message")
            with contextlib.suppress(OSError):
                print(f"hangtop: {count} could not be printed at once", file=sys.stderr)


def sentence(event: Happened) -> str:
    """Return what happened to a job, to continue a sentence after its name."""
    if event.kind == "job":
        return _watched(event.job)
    if event.kind == "hang":
        over = event.diagnosis is not None and event.diagnosis.hung_until_end
        return "hung until it ended" if over else "hangs"
    if event.kind == "resumed":
        return f"moves again after {duration(event.after_s)}"
    hung = f" after it hung for {duration(event.after_s)}" if event.after_s is not None else ""
    if event.kind == "ended":
        is_lost = event.diagnosis is not None and event.diagnosis.state == "unknown" and hung
        return f"{'was lost from sight' if is_lost else 'has ended'}{hung}"
    attempt = event.diagnosis.attempt if event.diagnosis is not None else None
    return f"was started again{hung}{f' ({attempt_text(attempt)})' if attempt else ''}"


def _watched(job: Job) -> str:
    """Return `is watched: 4 of 8 ranks on gpu[01-02], started by torchrun`."""
    expected = f" of {job.world_size}" if job.world_size and job.ranks else ""
    count = f"{len(job.ranks)}{expected} ranks" if expected else ranks_of(job)
    launcher = f", started by {clean(job.launcher)}" if job.launcher else ""
    return f"is watched: {count} on {nodesets.fold(job.nodes)}{launcher}"


def tells_why(event: Happened) -> bool:
    """Return whether the diagnosis of a job belongs to an event."""
    if event.kind == "restarted":
        return event.diagnosis is not None and bool(event.diagnosis.past_attempts)
    return event.kind == "hang" or why_ended(event) is not None


def why_ended(event: Happened) -> str | None:
    """Return why a job ended or restarted, if the reason was observed and it did not finish well.

    Guesses are left out: a process killed for lack of memory on the node need not belong to this
    job, and the first rank to exit need not be the one that failed.
    """
    if event.kind == "restarted" and event.diagnosis is not None and event.diagnosis.past_attempts:
        return why_before(event.diagnosis.past_attempts[-1])
    if event.kind != "ended" or event.diagnosis is None:
        return None
    if event.diagnosis.hung_until_end:
        return clean(f"{end_text(event.diagnosis)}{_first_of(event.diagnosis.verdicts)}", 1000)
    if event.diagnosis.state != "exited":
        return None
    for verdict in (event.diagnosis.verdicts or ())[:1]:
        if verdict.confidence >= SURE:
            return clean(f"{verdict.cause}: {verdict.summary}")
    return None


def why_before(past: PastAttempt) -> str:
    """Return what ended an attempt, and the first verdict on it."""
    return clean(f"{past_attempt_text(past)}.{_first_of(past.verdicts)}", 1000)


def _first_of(verdicts: Sequence[Verdict]) -> str:
    return next((f" {verdict.cause}: {verdict.summary}" for verdict in verdicts), "")


def job_data(job: Job) -> dict[str, Any]:
    """Return a job, for programs."""
    return {
        "key": job.key,
        "name": job.name,
        "id": job.id,
        "launcher": job.launcher,
        "world_size": job.world_size,
        "ranks": len(job.ranks),
        "nodes": list(job.nodes),
    }


def _is_away(node: Node, now: float) -> bool:
    if node.state in FAILED:
        return True
    return node.state not in OBSERVED and now - node.since >= AWAY_S
