"""Sentences and evidence that the verdicts on flight recorders share."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Culprit, Evidence, Verdict
from hangtop_core.model.frames import where
from hangtop_core.model.recorder.trace import STARTED
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import shown
from hangtop_core.text.rank_sets import fold, names, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.flight.shift import Shift
    from hangtop_core.analysis.flight.waits import Operation, Waits
    from hangtop_core.analysis.flight.world import Entry, World
    from hangtop_core.text.commands import Step

SHOWN = 4
"""Operations of one verdict whose evidence is spelt out; the others are counted."""
LONG = 60
"""Characters of a set of ranks from which on a sentence shows only its beginning."""
DEEP = 20
"""So many operations in flight in one group are worth a word: the first of them is the hang."""


def name(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-1,3`, `rank ? (pid 4711)`."""
    numbers = set(ranks)
    text = fold(numbers)
    if len(text) <= LONG:
        return names(numbers)
    # Every eighth of a thousand ranks, as in data groups: the document has them all.
    return f"ranks {text[:LONG].rpartition(',')[0]},… ({len(numbers)} ranks)"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def main_of(operations: Sequence[Operation]) -> Operation:
    """The one most ranks wait in; of several the oldest."""
    return min(operations, key=lambda one: (-len(one.entries), issued_ns(one), one.node))


def facts(
    waits: Waits, operations: Sequence[Operation], main: Operation | None = None
) -> list[Evidence]:
    """What is known of some operations, the main one first."""
    ordered = sorted(operations, key=lambda one: (one is not main, -len(one.entries), one.node))
    found = [_fact(None, _fact_text(one)) for one in ordered[:SHOWN]]
    if len(ordered) > SHOWN:
        found.append(_fact(None, f"{plural(len(ordered) - SHOWN, 'more operation')} alike"))
    shown = ordered[0]
    if shown.depth >= DEEP:
        text = (
            f"{shown.entry.name} is the oldest of {shown.depth} operations in flight on "
            f"{shown.label}: those behind it merely queue"
        )
        found.append(_fact(None, text))
    return found


def _fact_text(one: Operation) -> str:
    text = "; ".join(
        f"{name(ranks)} issued {clean(entry.call.text, 160)} as #{entry.seq} on "
        f"{one.label}{at_site(entry)}"
        for entry, ranks in one.classes[:SHOWN]
    )
    if one.node.kind == "p2p":
        call = one.entry.call
        text = (
            f"{name(one.entries)}: {clean(call.name, 80)} {clean(call.inputs, 80)} on {one.label}, "
            f"{rank_name(one.node.source)} to {rank_name(one.node.target)}{at_site(one.entry)}"
        )
    if one.missing:
        text += f"; {name(one.missing)} {verb(one.missing, 'has', 'have')} not"
    if one.passed:
        text += f"; over on {name(one.passed)}"
    if one.absent:
        text += f"; no dump of {name(one.absent)}"
    started = sorted(rank for rank, entry in one.entries.items() if entry.state == STARTED)
    if started:
        text += f"; running on the device of {name(started)}"
    late = sorted(rank for rank, entry in one.entries.items() if entry.timed_out)
    if late:
        text += f"; timed out on {name(late)}"
    when = issued_ns(one)
    if when:
        text += f"; since {datetime.fromtimestamp(when / 1e9, UTC):%H:%M:%S} UTC"
    return text


def end_of(world: World, ranks: Sequence[int]) -> str | None:
    """How ranks ended that others waited for: `finished`; None where one of them did not end."""
    ends = {world.traces[rank].ended if rank in world.traces else "" for rank in ranks}
    if not ranks or ends & {"", "running"}:
        return None
    if ends == {"finished"}:
        return "finished without an exception"
    if "finished" not in ends and len(ranks) == 1:
        return f"ended by {clean(world.traces[ranks[0]].why_ended, 120)}"
    return "ended, some by an exception" if "finished" in ends else "ended by exceptions"


def end_facts(world: World, ranks: Iterable[int]) -> list[Evidence]:
    """The exceptions by which ranks that waited have ended."""
    traces = [world.traces[rank] for rank in ranks if rank in world.traces]
    failed = [trace for trace in traces if trace.ended in ("exception", "collective")]
    return [
        _fact(trace.rank, f"its recorder was written at its end, by {clean(trace.why_ended, 200)}")
        for trace in failed[:SHOWN]
    ]


def far(world: World, operation: Operation, ranks: Sequence[int]) -> Evidence:
    """How far the ranks came that others wait for."""
    group = world.groups[operation.node.group]
    came = Counter(group.by_rank[rank].newest for rank in ranks if rank in group.by_rank)
    said = []
    for newest, _ in came.most_common(SHOWN):
        those = [r for r in ranks if r in group.by_rank and group.by_rank[r].newest == newest]
        counters = any(group.by_rank[rank].from_status for rank in those)
        how = " (from its counters: the recorder holds no entry)" if counters else ""
        last = f"#{newest}" if newest else "none"
        said.append(f"last of {name(those)} on {group.label}: {last}{how}")
    return _fact(ranks[0] if len(ranks) == 1 else None, "; ".join(said) + "; nothing in flight")


def shift_fact(world: World, group: int, shift: Shift) -> Evidence:
    """Where the sequences part."""
    label = world.groups[group].label
    text = (
        f"#{shift.seq} on {label} is the first number that differs: "
        f"{clean(shift.found.call.text, 120)}{at_site(shift.found)} here, "
        f"{clean(shift.expected.call.text, 120)}{at_site(shift.expected)} on the others"
    )
    if shift.how == "skipped" and shift.moved < 2:
        text += "; on the others the one here comes next after that"
    elif shift.how == "skipped":
        text += "; from there on its calls are those of the others, one number early"
    elif shift.how == "added" and shift.moved > 1:
        text += "; from there on its calls are those of the others, one number late"
    if shift.first < shift.seq:
        text += f"; #{shift.first} to #{shift.seq} look alike: it was one of these"
    return _fact(shift.rank, text)


def skip_text(shift: Shift) -> str:
    """`rank 2 skipped all_reduce #4 at train.py:41 (step)`."""
    one = f"{clean(shift.expected.call.op, 80)} #{shift.seq}{at_site(shift.expected)}"
    if shift.first < shift.seq:
        place = at_site(shift.expected)
        one = f"{clean(shift.expected.call.op, 80)}, one of #{shift.first} to #{shift.seq}{place},"
    if shift.again:
        one += f" (or issued {clean(shift.found.call.op, 80)} once more before it)"
    return f"{rank_name(shift.rank)} skipped {one}"


def named(one: Operation) -> str:
    """`all_reduce #17 on default_pg`."""
    if one.node.kind == "p2p":
        way = f"{rank_name(one.node.source)} -> {rank_name(one.node.target)}"
        return f"{clean(one.entry.call.op, 80)} {way} on {one.label}"
    return f"{one.entry.name} on {one.label}"


def at_site(entry: Entry) -> str:
    """` at train.py:41 (step)`, with a blank before it; empty without a stack."""
    return f" at {clean(where(entry.site), 200)}" if entry.site is not None else ""


def issued_ns(one: Operation) -> int:
    """When the first rank issued it; 0 when unknown."""
    return min((e.created_ns for e in one.entries.values() if e.created_ns), default=0)


def _fact(rank: int | None, text: str) -> Evidence:
    return Evidence("flight", rank, clean(text, 600))


def verdict(
    pattern: Pattern,
    text: str,
    culprits: Sequence[int],
    victims: Sequence[int],
    facts: Sequence[Evidence],
    steps: Sequence[Step] | None = None,
    confidence: float | None = None,
) -> Verdict:
    """A verdict of a pattern; what is not given is the pattern's own."""
    spelt = [shown(one) for one in (pattern.next_steps if steps is None else steps)]
    return Verdict(
        cause=pattern.cause,
        confidence=round(pattern.confidence if confidence is None else confidence, 2),
        culprits=tuple(Culprit(rank, "", None) for rank in culprits),
        victims=tuple(sorted(set(victims) - set(culprits))),
        summary=clean(text, 800),
        evidence=tuple(facts),
        next_steps=tuple(one.text for one in spelt),
        commands=tuple(one.command for one in spelt),
    )
