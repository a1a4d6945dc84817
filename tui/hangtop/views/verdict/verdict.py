"""The verdict in full: evidence, other explanations, next steps, timeline, blind spots."""

from __future__ import annotations

import re
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING

from hangtop.keys.items import Item
from hangtop.terminal.spans import EMPTY, Line, labelled, line, unbroken
from hangtop.views.common import clock
from hangtop.views.overview import end_lines, nothing_found, past_lines, verdict_lines
from hangtop.views.verdict.goals import Goal, goal_of, goal_of_need
from hangtop.views.verdict.judged import SUSPECTED, confidence
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.report.diagnosis import need_state, need_text, past_attempt_text
from hangtop_core.text.clean import duration, plural
from hangtop_core.text.rank_sets import fold, is_key, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.diagnosis import Culprit, Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job, Snapshot

SHOWN_CULPRITS = 6


def verdict_key(verdict: Verdict) -> str:
    """Return the key that identifies a verdict from one update to the next."""
    return f"{verdict.cause}:{fold([c.rank for c in verdict.culprits if c.rank is not None])}"


def chosen(diagnosis: Diagnosis | None, key: str | None) -> Verdict | None:
    """Return the verdict with this key, or the first one."""
    verdicts = diagnosis.verdicts if diagnosis is not None else ()
    matching = (verdict for verdict in verdicts if verdict_key(verdict) == key)
    past = (verdict for name, verdict in past_verdicts(diagnosis) if name == key)
    return next(matching, next(past, verdicts[0] if verdicts else None))


def past_verdicts(diagnosis: Diagnosis | None) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdicts on ended attempts, newest attempt first, each with its key."""
    attempts = diagnosis.past_attempts if diagnosis is not None else ()
    for place, past in reversed(list(enumerate(attempts))):
        for verdict in past.verdicts:
            yield f"past {past.number or place}:{verdict_key(verdict)}", verdict


def full_lines(
    snapshot: Snapshot | None,
    job: Job | None,
    diagnosis: Diagnosis | None,
    key: str | None = None,
    *,
    live: bool = True,
) -> list[Line]:
    """Return one verdict in full: summary, culprits, victims, and separate faults.

    Without a key the best verdict is used.
    """
    if snapshot is not None and job is None:
        return nothing_found(snapshot, live=live)
    best = chosen(diagnosis, key)
    if diagnosis is None or best is None:
        return verdict_lines(snapshot, job, diagnosis, blind=False, live=live)
    lines = [line((best.summary, "bold"))]
    if best in diagnosis.verdicts:
        lines += [*end_lines(diagnosis), *past_lines(diagnosis)]
    if diagnosis.verdicts and best is diagnosis.verdicts[0]:
        lines += _separate_faults(diagnosis.verdicts, best)
    return [*lines, *_culprit_lines(best), *_victim_lines(best)]


def _separate_faults(verdicts: Sequence[Verdict], best: Verdict) -> list[Line]:
    """Return the line of faults that are not a consequence of the best verdict's."""
    apart = [verdict for verdict in verdicts if verdict.apart and verdict is not best]
    if not apart:
        return []
    causes = ", ".join(f"{verdict.cause} ({_named(verdict)})" for verdict in apart[:3])
    note = "  faults of their own" if len(apart) > 1 else "  a fault of its own"
    return [labelled("and", line((causes, "culprit"), (note, "dim")))]


def _culprit_lines(verdict: Verdict) -> list[Line]:
    label = "culprit" if verdict.confidence >= SUSPECTED else "suspect"
    lines = [labelled(label, _culprit(named)) for named in verdict.culprits[:SHOWN_CULPRITS]]
    hidden = verdict.culprits[SHOWN_CULPRITS:]
    if hidden:
        ranks = [culprit.rank for culprit in hidden if culprit.rank is not None]
        lines.append(labelled("", f"and {plural(len(ranks), 'rank')}: {fold(ranks)}"))
    return lines


def _culprit(culprit: Culprit) -> Line:
    """Return `rank 2 on gpu03 pid 3430`."""
    rank = culprit.role or "rank ?"
    if culprit.rank is not None:
        rank = rank_name(culprit.rank, culprit.about)
    pid = "" if culprit.pid is None or is_key(culprit.rank or 0) else f"  pid {culprit.pid}"
    return line((rank, "culprit"), f"  on {culprit.node}{pid}" if culprit.node else "")


def _victim_lines(verdict: Verdict) -> list[Line]:
    if not verdict.victims:
        return []
    verb = "only waits" if len(verdict.victims) == 1 else "only wait"
    text = f"{plural(len(verdict.victims), 'rank')} {verb}: {fold(verdict.victims)}"
    return [labelled("victims", line(text))]


def _named(verdict: Verdict) -> str:
    ranks = [c.rank for c in verdict.culprits if c.rank is not None]
    roles = [c.role for c in verdict.culprits if c.role]
    return name_ranks(ranks) if ranks else ", ".join(roles) or "no rank"


def evidence_items(
    diagnosis: Diagnosis | None,
    key: str | None = None,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> list[Item]:
    """Return the evidence of a verdict, in its order; `keys` as `Keymap.names` has them."""
    best = chosen(diagnosis, key)
    if diagnosis is None or best is None:
        return []
    items = []
    ranks = diagnosis.job is None or diagnosis.job.ranks_seen
    nodes = frozenset(diagnosis.job.nodes if diagnosis.job is not None else ())
    for place, evidence in enumerate(best.evidence):
        rank = "" if evidence.rank is None else rank_name(evidence.rank)
        says = line((f"{evidence.source:<12}", "info"), f"{rank:<10}", evidence.text)
        goal = goal_of(evidence, best, nodes)
        leads = line("  ", unbroken(goal.label(keys), "dim")) if ranks else EMPTY
        items.append(
            Item(
                key=f"{place}:{evidence.source}",
                lines=(line(("✔ ", "good"), says, leads),),
                indent=24,
                copy=says,
                target=goal if ranks else None,
            )
        )
    return [*items, *need_items(diagnosis)]


def need_items(diagnosis: Diagnosis) -> list[Item]:
    """Return what rules have asked for, and the state of each request."""
    items = []
    for place, need in enumerate(diagnosis.needs):
        mark = ("✔ ", "good") if need.state == "answered" else ("? ", "warn")
        role = _NEED_ROLES.get(need.state, "dim")
        asked, state = line(f"{need_text(need)}: "), line((need_state(need), role))
        items.append(
            Item(
                key=f"need:{place}",
                lines=(line(mark, ("asked for   ", "info"), asked, state),),
                indent=14,
                copy=line(need.told) if need.told else line(need_text(need)),
                target=goal_of_need(need),
            )
        )
    return items


_NEED_ROLES = {"answered": "good", "asked": "warn", "needs consent": "warn"}
"""The role of each state of a need."""


def other_items(diagnosis: Diagnosis | None, key: str | None) -> list[Item]:
    """Return every verdict but the shown one, and what is ruled out, with the evidence used."""
    shown = chosen(diagnosis, key)
    if diagnosis is None:
        return []
    items = []
    for verdict in diagnosis.verdicts:
        if verdict is shown:
            continue
        kind = ("  a fault of its own", "culprit") if verdict.apart else ("", "")
        if verdict is diagnosis.verdicts[0]:
            kind = ("  the first", "good")
        lines = [
            line((verdict.cause, "bold"), "  ", confidence(verdict), kind),
            line("  ", verdict.summary),
        ]
        if verdict.weaker:
            lines.append(line(("  ↳ ", "dim"), (verdict.weaker, "warn")))
        name = verdict_key(verdict)
        items.append(Item(name, tuple(lines), 4, target=name))
    attempts = {
        id(explanation): past for past in diagnosis.past_attempts for explanation in past.verdicts
    }
    for name, verdict in past_verdicts(diagnosis):
        if verdict is not shown:
            head = line((verdict.cause, "bold"), "  ", confidence(verdict), ("  over", "dim"))
            over = line(("  ↳ ", "dim"), (past_attempt_text(attempts[id(verdict)]), "warn"))
            items.append(Item(name, (head, line("  ", verdict.summary), over), 4, target=name))
    for out in diagnosis.ruled_out:
        text = line(("ruled out  ", "good"), out.text, (f": {out.looked_at}", "dim"))
        items.append(Item(f"out:{out.text}", (text,), 11))
    return items


def timeline_items(diagnosis: Diagnosis | None, now: float) -> list[Item]:
    """Return the events in local time, each with the time since the first."""
    moments = diagnosis.timeline if diagnosis is not None else ()
    items = []
    for place, event in enumerate(moments):
        after = f"+{duration(event.at - moments[0].at)}"
        text = event.text
        if event.at > now:
            text += f" (in {duration(event.at - now)})"
        head = line(
            (clock(event.at), "info"), (f" {after:>8}  ", "dim"), (text, _ROLES.get(event.kind, ""))
        )
        items.append(Item(f"{place}:{event.kind}", (head,), 19))
    return items


_ROLES = {"sign": "culprit", "hung": "bad", "due": "warn", "watched": "dim", "log": "bad"}
"""The role of each kind of event; all others are plain."""


def step_items(diagnosis: Diagnosis | None, key: str | None) -> list[Item]:
    """Return the next steps of a verdict, with the command that `y` copies and the key for it."""
    best = chosen(diagnosis, key)
    items = []
    for place, (text, command) in enumerate(_steps_of(best), 1):
        lines = [line((f"{place}  ", "bold"), text)]
        shown = line((command, "code"))
        copies = line(("y", "key"), (" copies", "dim"))
        if command == text:
            lines = [line(lines[0], "   ", copies)]
        elif command:
            lines.append(line("   ", copies, "  ", shown))
        local_key = key_for(command)
        goal = _rank_of(best, command) if best is not None and local_key else None
        if goal is not None and local_key is not None:
            lines[-1] = line(
                lines[-1], ("  or here: ", "dim"), ("Enter ", "key"), (local_key, "key")
            )
        items.append(Item(str(place), tuple(lines), 3, shown if command else line(text), goal))
    return items


def _steps_of(verdict: Verdict | None) -> Iterable[tuple[str, str]]:
    """Yield each next step with the command at its end, if it has one."""
    if verdict is None:
        return ()
    return zip_longest(
        verdict.next_steps, verdict.commands[: len(verdict.next_steps)], fillvalue=""
    )


def key_for(command: str) -> str | None:
    """Return the key of the Rank screen with the effect of a command, after a confirmation."""
    if " --native" in command:
        return "c"
    return "s" if re.search(r"\bstrace -f -p \d", command) else None


def _rank_of(verdict: Verdict, command: str) -> Goal | None:
    """Return the page of the rank whose process a command is about; None for a child process."""
    match = re.search(r"(?:--pid|-p) (\d+)", command)
    pid = int(match[1]) if match else None
    ranks = (
        culprit.rank
        for culprit in verdict.culprits
        if culprit.pid == pid and culprit.rank is not None
    )
    return next((Goal("rank", rank, "stack") for rank in ranks), None)


def blind_items(diagnosis: Diagnosis | None) -> list[Item]:
    """Return the blind spots, with the reason and the fix of each."""
    items = []
    for place, spot in enumerate(diagnosis.blind_spots if diagnosis else ()):
        subject = name_ranks(spot.ranks) if spot.ranks else ", ".join(spot.nodes)
        head = line(
            ("? ", "warn"), (spot.what, "bold"), f"  {subject}" if subject else "", f": {spot.why}"
        )
        lines = [head]
        fix = line((spot.fix, "code"))
        if spot.fix:
            lines.append(line(("  fix  ", "label"), fix))
        copy = line((spot.command, "code")) if spot.command else fix
        items.append(Item(f"{place}:{spot.what}", tuple(lines), 7, copy or None))
    return items
