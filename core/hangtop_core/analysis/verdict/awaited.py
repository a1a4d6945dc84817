"""Ranks that wait for what another rank has, where that one is stuck in something else itself.

A lock of a file, the other end of a pipe or socket: who waits for it is a victim of whoever has
it. The verdict on the holder then tells of both, and is no longer listed after its consequence.
Where they wait for each other in a circle, and where the holder is no rank or gets on, it stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hangtop_core.analysis.verdict.base import besides
from hangtop_core.analysis.verdict.callers import parted, stack_key, stack_of
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, peer
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.filelocks import by_being_there, locked_by_others, wanted
from hangtop_core.analysis.verdict.naming import name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor

_WAITS = frozenset(
    {"file-lock", "io-wait", "remote-service-wait", "queue-wait", "output-pipe-full"}
)
"""Causes by which a rank waits for what somebody else has."""
_SURE = 0.5
"""Confidence in what holds the holder, below which a verdict on those that wait says more."""


class _Held(NamedTuple):
    """What somebody waits for, and the ranks that have it."""

    text: str
    """`the lock of /data/a.lock, which rank 1 has`."""
    owners: tuple[Subject, ...]
    one: Descriptor | None = None


def without_consequences(case: Case, hits: Sequence[tuple[Rule, Hit]]) -> list[tuple[Rule, Hit]]:
    """Return hits without those on ranks that only wait for what a rank of another hit has."""
    waiting = [at for at, (rule, hit) in enumerate(hits) if rule.cause in _WAITS and hit.subjects]
    if not waiting or len(hits) < 2:
        return list(hits)
    blamed = {
        id(s): at
        for at, (rule, hit) in enumerate(hits)
        for s in hit.subjects
        if (rule.confidence if hit.confidence is None else hit.confidence) >= _SURE
    }
    pids = {
        (s.rank.node, pid): s
        for s in case.subjects
        for pid in (s.pid, *(child.pid for child in s.rank.children))
    }
    # One of those that are at one place is enough.
    ways = {stack_key(s): s for s in reversed(case.subjects) if id(s) in blamed}
    stuck_at = sorted(ways.values(), key=lambda s: s.number)
    leads: dict[int, tuple[int, _Held]] = {}
    for at in waiting:
        held = _held(case, hits[at], pids, stuck_at)
        if held is None or len(besides(held.owners, hits[at][1].subjects)) < len(held.owners):
            continue
        # Who waits for others cannot be why: of several that have it, it is who is stuck alone.
        stuck = {blamed[id(s)] for s in held.owners if id(s) in blamed} - {at}
        if len(stuck) == 1 and all(id(s) in blamed or s.waits for s in held.owners):
            leads[at] = stuck.pop(), held
    return _merged(hits, leads)


def _merged(
    hits: Sequence[tuple[Rule, Hit]], leads: Mapping[int, tuple[int, _Held]]
) -> list[tuple[Rule, Hit]]:
    found = list(hits)
    gone: set[int] = set()
    for at, (_, held) in leads.items():
        end, seen = at, {at}
        while end in leads and leads[end][0] not in seen:
            end = leads[end][0]
            seen.add(end)
        if end in leads:
            continue  # a circle
        gone.add(at)
        waiters = hits[at][1].subjects
        verb = "waits" if len(waiters) == 1 else "wait"
        rule, hit = found[end]
        facts = [fact("process", waiters[0].number, name_descriptor(held.one))] if held.one else []
        text = f"{name_ranks(waiters)} {verb} for {held.text}, at {waiters[0].activity.at}"
        found[end] = (
            rule,
            replace(
                hit,
                summary=f"{hit.summary}; {text}",
                evidence=(*hit.evidence, *facts),
                held_up=(*hit.held_up, *waiters),
            ),
        )
    return [one for at, one in enumerate(found) if at not in gone]


def _held(
    case: Case,
    told: tuple[Rule, Hit],
    pids: Mapping[tuple[str, int], Subject],
    stuck: Iterable[Subject],
) -> _Held | None:
    """What the subjects of a hit wait for, as far as a table of descriptors of one tells."""
    rule, hit = told
    first = next((s for s in hit.subjects if s.rank.descriptors is not None), hit.subjects[0])
    node = first.rank.node
    if rule.cause == "file-lock":
        lock = wanted(case, first).lock if first.activity.kind == "file-lock" else None
        lock = lock or next(iter(locked_by_others(first)), None)
        holders = [h for h in lock.holders if "lock" in h.how] if lock is not None else []
        if lock is None or not holders:
            return _passed(case, first, stuck)
        owners = [pids[key] for h in holders if (key := (node, h.pid)) in pids]
        if len(owners) < len(holders):
            return None
        own = owners[0].pid == holders[0].pid
        by = name_ranks(owners[:1]) + ("" if own else f" (its pid {holders[0].pid})")
        return _Held(f"the lock of {lock.target}, which {by} has", tuple(owners), lock)
    one = descriptor(first)
    if one is None:
        return None
    opposite = "reads" if one.mode == "w" else "writes"
    ends = [h.pid for h in one.holders if opposite in h.how]
    if one.socket is not None:
        other = peer(case, first, one)
        ends = [one.socket.peer_pid] if one.socket.peer_pid is not None else []
        owner = pids.get((other.node, other.pid or 0)) if other is not None else None
        if owner is not None:
            return _Held(f"{name_ranks([owner])} (fd {one.fd})", (owner,), one)
    met = [pids[key] for pid in ends if (key := (node, pid)) in pids and pid != first.pid]
    met = list({id(s): s for s in met if s is not first}.values())
    strangers = any((node, pid) not in pids for pid in ends)
    own_child = any(pids.get((node, pid)) is first for pid in ends)
    if not met or strangers or own_child:
        return None
    return _Held(f"what {name_ranks(met)} has the other end of (fd {one.fd})", tuple(met), one)


def _passed(case: Case, first: Subject, stuck: Iterable[Subject]) -> _Held | None:
    """Who has come past the line at which a rank waits for a lock of which no kernel knows.

    By the same calls. Of torch's FileBaton the maker of the file is in another branch.
    """
    mine = stack_of(case.snapshot.stacks, first)
    for other in stuck:
        theirs = stack_of(case.snapshot.stacks, other)
        met = parted(mine, theirs)
        if met is None:
            continue
        wants, has = met
        if has.line > wants.line or by_being_there(first):
            return _Held(f"a lock that {name_ranks([other])} most likely has", (other,))
    return None
