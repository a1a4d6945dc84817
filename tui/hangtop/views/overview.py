"""The overview: the verdict in a few lines, stack classes, and the health of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import idle_seconds, span, unheard
from hangtop.views.nodes.nodes import alike, node_role
from hangtop.views.ranks.places import doing
from hangtop.views.verdict.judged import cause_of, confidence, culprits, unread
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.jobs.named import only_named
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.report.diagnosis import (
    end_text,
    idle_parts,
    idle_title,
    numbers_text,
    past_attempt_text,
)
from hangtop_core.stacks.merging import NoStack, class_steps, missing
from hangtop_core.text import node_sets
from hangtop_core.text.clean import duration, plural
from hangtop_core.text.launchers import LOOKED_FOR, script
from hangtop_core.text.rank_sets import fold, names, rank_name

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from hangtop_core.diagnosis import Diagnosis, PastAttempt, Verdict
    from hangtop_core.model.snapshot import Job, Node, Process, Snapshot


NODES_TOLD = 12
"""Largest number of nodes that are described one by one where no job is found."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Ranks on one stack, or ranks without a stack for one reason."""

    key: str
    ranks: tuple[int, ...]
    share: float
    age: float | None
    place: str
    call: str
    note: str
    role: str
    fix: str | None = None


def class_row_steps(
    snapshot: Snapshot, job: Job | None, diagnosis: Diagnosis | None, now: float
) -> Generator[None, None, list[ClassRow]]:
    """Compute, in steps, the stack classes, smallest first, then the ranks without a stack."""
    if job is None:
        return []
    blamed = _blamed(job, diagnosis)
    yield
    total = len(job.ranks) or 1
    quiet = unheard(snapshot.nodes, now)
    ranks = job.ranks if quiet else ()
    silent = {rank.rank: quiet[rank.node][1] for rank in ranks if rank.node in quiet}
    rows = []
    for group in (yield from class_steps(snapshot, job.ranks)):
        place, call = doing(group.frames)
        mark = _mark(blamed, group.ranks)
        heard = silent.keys().isdisjoint(group.ranks)
        rows.append(
            ClassRow(
                key=f"stack:{group.stack}",
                ranks=group.ranks,
                share=len(group.ranks) / total,
                age=None
                if group.since is None
                else now - _unseen_for(group.ranks, silent) - group.since,
                place=place or "(no frames)",
                call=call,
                note=mark or _class_note(group.ranks, silent, group.moved),
                role="culprit" if mark else "dim" if heard else "bad",
            )
        )
        yield
    rows += [_without(none, total, blamed) for none in missing(job.ranks)]
    return rows


def _without(none: NoStack, total: int, blamed: frozenset[int]) -> ClassRow:
    guilty = _mark(blamed, none.ranks)
    return ClassRow(
        key=f"none:{none.why}",
        ranks=none.ranks,
        share=len(none.ranks) / total,
        age=None,
        place=f"no stack: {none.why}",
        call="",
        note=guilty,
        role="culprit" if guilty else "warn",
        fix=none.fix,
    )


def _unseen_for(ranks: Sequence[int], silent: Mapping[int, float]) -> float:
    """Return for how many seconds none of these ranks was observed; 0 if one of them still is."""
    if len(ranks) > len(silent):
        return 0.0
    return min(silent.get(rank, 0.0) for rank in ranks)


def _class_note(ranks: Sequence[int], silent: Mapping[int, float], moved: int) -> str:
    """Return that the stacks of a class are old, as its nodes are silent, or that ranks move."""
    old = len(silent.keys() & set(ranks))
    if old:
        return "silent" if old == len(ranks) else f"{old} silent"
    return f"{moved} moving" if moved else ""


def _mark(blamed: frozenset[int], ranks: Sequence[int]) -> str:
    """Return that a class holds culprits; which ones, when it also holds other ranks."""
    guilty = sorted(blamed.intersection(ranks))
    if len(guilty) == len(ranks):
        return "◀ culprit"
    if len(guilty) == 1:
        return f"◀ {rank_name(guilty[0])}"
    return f"◀ {len(guilty)} of it" if guilty else ""


def _blamed(job: Job, diagnosis: Diagnosis | None) -> frozenset[int]:
    causes = culprits(diagnosis)
    return frozenset(
        rank.rank for rank in (job.ranks if causes else ()) if cause_of(causes, rank) is not None
    )


CLASS_COLUMNS: tuple[Column[ClassRow], ...] = (
    Column(
        "count", "RANKS", lambda row: line((str(len(row.ranks)), "bold")), align="right", minimum=5
    ),
    Column("share", "%", lambda row: line(f"{row.share:.0%}"), align="right", minimum=4, drop=4),
    Column("age", "SAME", lambda row: line(span(row.age)), align="right", minimum=5, drop=3),
    Column("who", "WHO", lambda row: line(fold(row.ranks)), minimum=5, maximum=18),
    Column(
        "where",
        "AT",
        lambda row: line((row.place, "warn" if row.key.startswith("none:") else "")),
        minimum=12,
        maximum=44,
        flex=True,
        keep_end=True,
    ),
    Column("call", "CALL", lambda row: line((row.call, "code")), maximum=20, optional=True, drop=2),
    Column("note", "", lambda row: line((row.note, row.role)), minimum=9, maximum=12, drop=1),
)


def verdict_title(best: Verdict | None) -> Line:
    """Return the title of a verdict's panel: cause and confidence."""
    if best is None:
        return line(("VERDICT", "title"))
    return line(("VERDICT  ", "title"), (best.cause, "culprit"), "  ", confidence(best))


def verdict_lines(
    snapshot: Snapshot | None,
    job: Job | None,
    diagnosis: Diagnosis | None,
    *,
    blind: bool = True,
    live: bool = True,
) -> list[Line]:
    """Return the verdict in short; without one, what is known and what is being done.

    Without ``blind`` the blind spots are left to another pane; without ``live`` nothing is being
    done.
    """
    if snapshot is None:
        return [line("Connecting; nothing has answered yet.")]
    if job is None:
        return nothing_found(snapshot, live=live)
    if diagnosis is None:
        text = "Observing; a first judgement follows in a moment." if live else "Not judged yet."
        return [line(text)]
    if diagnosis.verdicts:
        return [*_given(diagnosis.verdicts, diagnosis), *past_lines(diagnosis)]
    numbers = _numbers(diagnosis)
    if job.unnumbered and not job.ranks and not job.launchers:
        lines = unreadable(job, snapshot.at)
    else:
        lines = _none_given(diagnosis, job, snapshot.at)
    past = past_lines(diagnosis)
    return [*lines, *past, *numbers, *(_blind(diagnosis) if blind else ())]


def end_lines(diagnosis: Diagnosis) -> list[Line]:
    """Return when and how a job that hung ended, and the time of its verdict."""
    if not diagnosis.hung_until_end:
        return []
    return [labelled("end", line((end_text(diagnosis), "warn")), 5)]


def past_lines(diagnosis: Diagnosis, limit: int = 2) -> list[Line]:
    """Return what ended the newest attempts before the running one."""
    past = diagnosis.past_attempts[-limit:]
    return [labelled("was", line((past_line(attempt), "warn")), 5) for attempt in reversed(past)]


def past_line(past: PastAttempt) -> str:
    """Return what ended an attempt, and its cause, with the ranks."""
    causes = [f"  {verdict.cause}{_culprit_ranks(verdict)}" for verdict in past.verdicts[:1]]
    return f"{past_attempt_text(past)}{''.join(causes)}"


def _culprit_ranks(verdict: Verdict) -> str:
    ranks = [culprit.rank for culprit in verdict.culprits if culprit.rank is not None]
    return f" ({name_ranks(ranks)})" if ranks else ""


def _numbers(diagnosis: Diagnosis) -> list[Line]:
    """Return the first inf or nan of the job."""
    if diagnosis.numbers is None:
        return []
    return [labelled("note", line((numbers_text(diagnosis.numbers), "bad")), 5)]


YOUNG_S = 8.0
"""Seconds after its start in which a named program may still start ranks; the probe waits 5."""


def unreadable(job: Job, at: float) -> list[Line]:
    """Return processes that no evidence shows to be ranks: which, and why."""
    if only_named(job):
        return [_named(process, at) for process in job.unnumbered[:4]]
    lines = [line(("No rank could be told by its number.", "bold"))]
    for process in job.unnumbered[:4]:
        why = process.denied or "no RANK or the like is in its environment"
        lines.append(line(f"pid {process.pid} {process.comm}", ("  ", ""), (why, "warn")))
    return lines


def _named(process: Process, at: float) -> Line:
    """Return what is known of a process that the user named, while it is not shown as a rank."""
    subject = f"Process {process.pid} ({script(process.cmdline) or process.comm})"
    if at - process.started_at < YOUNG_S:
        return line(f"{subject} has just begun: it may start ranks. It is shown in some seconds.")
    return line(f"{subject} is no Python program, and none is below it.")


def _given(verdicts: Sequence[Verdict], diagnosis: Diagnosis) -> list[Line]:
    best = verdicts[0]
    lines = [line((best.summary, "bold")), *end_lines(diagnosis)]
    if best.next_steps:
        lines.append(labelled("do", best.next_steps[0], 5))
    if len(verdicts) > 1:
        also = ", ".join(map(_also, verdicts[1:4]))
        lines.append(labelled("also", line((also, "dim")), 5))
    return [*lines, *_numbers(diagnosis), *_blind(diagnosis)]


def _also(verdict: Verdict) -> str:
    """Return `lock-wait 82%`, with the ranks of a separate fault."""
    ranks = [culprit.rank for culprit in verdict.culprits if culprit.rank is not None]
    own = f" (a fault of its own: {name_ranks(ranks)})"
    return f"{verdict.cause} {verdict.confidence:.0%}{own if verdict.apart and ranks else ''}"


def _none_given(diagnosis: Diagnosis, job: Job, now: float) -> list[Line]:
    stalled = diagnosis.stalled_for_s
    if diagnosis.state in ("hung", "unknown") and (left := unread(diagnosis, job)):
        still = "" if stalled is None else f" Nothing has moved for {span(stalled)}."
        return [
            line((f"The stacks of {plural(left, 'rank')} are still to come.{still}", "bold")),
            line("What they do is not known before."),
        ]
    if diagnosis.state == "hung":
        return [
            line((f"Hung for {span(diagnosis.hung_for_s)}, and no known cause fits.", "bold")),
            line("Look at the smallest stack class below (n), and at what could not be seen (5)."),
        ]
    if diagnosis.hung_until_end and diagnosis.ended is not None:
        lasted = span(diagnosis.ended.after_hanging_s)
        text = f"Hung for {lasted} until it ended, and no known cause fits."
        return [line((text, "bold")), *end_lines(diagnosis)]
    if diagnosis.state == "idle":
        waits = diagnosis.request_waits
        return [line((idle_title(waits), "good")), *map(line, idle_parts(waits))]
    if diagnosis.state == "starting":
        return [line(("The job is starting up.", "bold")), line(_start(diagnosis))]
    if diagnosis.state == "exited":
        return [
            line(("All ranks have exited.", "bold")),
            line("Nothing shows that one has failed; what they have printed is on 8."),
        ]
    if stalled is not None and stalled >= STALLED_AFTER_S:
        return [
            line((f"Nothing that means progress has moved for {span(stalled)}.", "bold")),
            line("Not called hung yet: a checkpoint or an evaluation may look the same."),
        ]
    if diagnosis.state == "progressing":
        verdict_lines = [line("Nothing to blame.")] if diagnosis.numbers is None else []
        return [line(("The job is progressing.", "good")), *verdict_lines]
    lines = [line(f"Observing for {duration(diagnosis.observed_for_s)}; no judgement yet.")]
    return [*lines, *_unequal(job, now)]


UNEQUAL_S = 10.0
"""Seconds without having run after which it is worth a line that other ranks have run."""


def _unequal(job: Job, now: float) -> list[Line]:
    """Return that some ranks are idle while others run, before there is a verdict."""
    idle = {rank.rank: idle_seconds(rank, now) or 0.0 for rank in job.ranks}
    still = sorted(rank for rank, seconds in idle.items() if seconds >= UNEQUAL_S)
    if not still or len(still) == len(idle):
        return []
    least = min(idle[rank] for rank in still)
    running = sorted(set(idle) - set(still))
    stand = "have" if len(still) > 1 else "has"
    run = "run" if len(running) > 1 else "runs"
    text = f"{names(still)} {stand} not run for {span(least)}; {names(running)} {run}."
    return [line(text[0].upper() + text[1:])]


def _start(diagnosis: Diagnosis) -> str:
    job = diagnosis.job
    if job is None or job.world_size is None:
        return "Waiting for ranks to appear."
    return f"{len(job.ranks_seen)} of {plural(job.world_size, 'rank')} seen so far."


def _blind(diagnosis: Diagnosis) -> list[Line]:
    if not diagnosis.blind_spots:
        return []
    what = ", ".join(dict.fromkeys(spot.what for spot in diagnosis.blind_spots))
    return [labelled("blind", line((what, "warn"), ("  (5: why, and the fix)", "dim")), 5)]


def nothing_found(snapshot: Snapshot, *, live: bool = True) -> list[Line]:
    """Return the lines when there is no job: what was searched for, and what was seen instead."""
    answering = [node for node in snapshot.nodes if node.state in OBSERVED]
    if not answering:
        return no_answer(snapshot, live=live)
    going_on = "; still looking, every second" if live else " by then"
    lines = [
        line((f"No training job found{going_on}.", "bold")),
        line(
            "Looked for Python processes in a process group of torch, for a rank in their "
            f"environment ({LOOKED_FOR}), and for launchers."
        ),
    ]
    lines += _states([node for node in snapshot.nodes if node.state not in OBSERVED])
    for node in answering[:NODES_TOLD]:
        lines += _seen_on(node)
    if len(answering) > NODES_TOLD:
        omitted = node_sets.fold(node.name for node in answering[NODES_TOLD:])
        lines.append(line(f"{omitted}: see Nodes (9)."))
    if live:
        lines.append(line("A job that is started in another way: hangtop --pid PID"))
    return lines


def _seen_on(node: Node) -> list[Line]:
    """Return what was seen on a responding node instead of a rank."""
    lines = []
    if node.processes is not None:
        lines.append(line(f"{node.name}: {plural(node.processes, 'process', 'processes')} seen."))
    for user, count in sorted(node.other_users.items()):
        text = f"  {plural(count, 'rank-like process', 'rank-like processes')} of {user}"
        lines.append(line((text, "warn"), ": start hangtop with --all-users to see them."))
    lines += [line("  Python, but no rank: ", (cmd, "dim")) for cmd in node.python_processes]
    return lines


def _states(nodes: Sequence[Node]) -> list[Line]:
    """Return the states of nodes with reasons; one line with the fix per reason."""
    lines = []
    for group in alike(nodes):
        node = group[0]
        name = node_sets.fold(member.name for member in group)
        reason = (node.reason if len(group) == 1 else node.cause) or ""
        fix = line("  ", (node.fix, "code")) if node.fix and len(group) == 1 else ""
        lines.append(line((f"{name}: {node.state}", node_role(node.state)), f"  {reason}", fix))
    return lines


def no_answer(snapshot: Snapshot, *, live: bool) -> list[Line]:
    """Return the state of each node and the reason, when no node responds."""
    waiting = all(node.state == "connecting" for node in snapshot.nodes)
    text = "Connecting; no node has answered yet." if waiting else "No node answers."
    again = (
        ""
        if waiting
        else "  9 shows more" + ("; Ctrl-r tries all again at once" if live else "") + "."
    )
    return [line((text, "bold"), again), *_states(snapshot.nodes)]
