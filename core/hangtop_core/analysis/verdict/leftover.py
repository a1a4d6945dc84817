"""Ranks that torchrun has started anew, and that look for ranks of the attempt before.

The store of torchrun's agent outlives an attempt, and torch keeps the keys of attempts apart no
more (2.13: `_create_c10d_store` in rendezvous.py adds no prefix, dynamic_rendezvous.py makes the
store once). In gloo each rank writes its address there and reads those of all others: who comes
before another has written gets the old one. Of two addresses the higher one connects to the lower
one, so with an old address both of a pair may decide to wait for the other, until the timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.peers import End
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks, wait_text
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.storehost import connects, open_sockets, tcp_sockets
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.stacks.kinds import Kind

_MOST = 64
"""Ranks that are compared with one another."""
_BEFORE: frozenset[Kind] = frozenset({"init", "store"})
_MEETS: frozenset[Kind] = frozenset({"init", "new-group"})
_OWN_STORE = Advice(
    "end the job, and start it again with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment "
    "of torchrun, and --rdzv-backend=c10d or --standalone: each attempt then has a store of its own"
)


class _Apart(NamedTuple):
    """Ranks that gloo connects, and which of them are not connected."""

    members: tuple[Subject, ...]
    pair: tuple[Subject, Subject] | None
    """Two that are not, nor try to be; None where too few tables of descriptors tell."""


def restarts(subject: Subject) -> str:
    """How often torchrun has started a rank anew, as it was told; empty for not at all."""
    count = subject.rank.process.env.get("TORCHELASTIC_RESTART_COUNT", "0")[:6]
    return count if count.isascii() and count.isdecimal() and count.strip("0") else ""


def left_over(subject: Subject) -> str:
    """What may be left of earlier attempts, where torchrun has started a rank anew; or empty."""
    count = restarts(subject)
    if not count or subject.rank.process.env.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        return ""
    text = "keys and addresses that an attempt before left in the store of torchrun"
    return f", or {text} (TORCHELASTIC_RESTART_COUNT is {count})"


def apart(case: Case) -> _Apart | None:
    """Ranks of a later attempt that wait for gloo's connections, where all others wait as well."""
    if case.suspects or not case.waiters or not any(map(restarts, case.waiters)):
        return None
    members = tuple([s for s in case.waiters if _in_gloo(s)])
    if len(members) < 2 or case.seats:
        return None
    if not all(_shares(s) for s in members) or any(_tries(s) for s in members):
        return None
    if any(s.activity.kind == "new-group" for s in members):
        # Who is elsewhere may have left that call out, and all were connected before.
        return _Apart(members, None) if len(case.waiting_classes) == 1 else None
    if any(s.activity.kind in _BEFORE for s in case.waiters if not _in_gloo(s)):
        return None
    # gloo connects them in the order of ranks: the first two that are not wait for each other.
    ordered = sorted(members, key=lambda s: s.number)
    for i, one in enumerate(ordered[:_MOST]):
        met = _connected(case, one)
        if met is None:
            return _Apart(members, None)
        for two in ordered[i + 1 :]:
            if two.number not in met:
                return _Apart(members, (one, two))
    return _Apart(members, None) if len(members) > _MOST else None


def _in_gloo(subject: Subject) -> bool:
    """Whether a rank has all addresses, and sleeps until gloo has connected it to their ranks."""
    activity = subject.activity
    top = activity.top
    if activity.kind not in _MEETS or activity.family != "futex" or top is None:
        return False
    source = top.source
    return top.name == "_new_process_group_helper" and (source is None or "Gloo" in source)


def _shares(subject: Subject) -> bool:
    return subject.rank.process.env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _tries(subject: Subject) -> bool:
    """Whether a rank tries to connect somewhere: then it is the way there that is in question."""
    return connects(subject) or any(one.state == "SYN_SENT" for one in subject.rank.process.stalled)


def _connected(case: Case, subject: Subject) -> set[int] | None:
    """The ranks to which a rank has a connection that stands; None where not all are known."""
    node, pid = subject.rank.node, subject.pid
    if subject.rank.descriptors is None:
        return None
    found = [
        case.peers.get(End(node, pid, one.fd))
        for one in open_sockets(subject)
        if one.socket is not None
        and one.socket.state == "ESTABLISHED"
        and not subject.rank.process.meets_at(one.socket.remote)
    ]
    known = [one for one in found if one is not None and one.pid is not None]
    return {p.rank for p in known if p.rank is not None} if len(known) == len(found) else None


def _left_over(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = apart(case)
    if found is None:
        return
    members, pair = found
    first = members[0]
    count = next(filter(None, map(restarts, members)))
    what = "gloo does not get all of them connected"
    if pair is not None:
        names = name_ranks([one.number for one in pair])
        what = f"{names} are not connected, and neither tries: each waits for the other to do it"
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"{who(members)} {is_are(members, 'waits', 'wait')} {wait_text(first.activity)} "
            f"{case.since(first)}, where {what}. torchrun has started them anew "
            f"(TORCHELASTIC_RESTART_COUNT is {count}) with the store of the attempt before "
            "(TORCHELASTIC_USE_AGENT_STORE), in which the addresses of its ranks still are: most "
            "likely a rank has read one of those before the new one was there",
            blamed=members,
        ),
        evidence=tuple(_facts(case, found)),
        steps=(
            _OWN_STORE,
            Advice("see why the attempt before ended: its first error is in the log of torchrun"),
        ),
        confidence=None if pair is not None else 0.7,
    )


def _facts(case: Case, found: _Apart) -> Iterator[Evidence]:
    first = found.members[0]
    env = first.rank.process.env
    names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE")
    yield fact("environment", first.number, ", ".join(f"{n}={env.get(n, '')}" for n in names))
    for subject in found.pair or ():
        others = _connected(case, subject)
        if others is None:
            continue
        listens = [one.local for one in tcp_sockets(subject) if one.state == "LISTEN"]
        to = f"is connected to {name_ranks(others)}" if others else "is connected to no other rank"
        at = f"listens on {', '.join(listens[:SHOWN])} and " if listens else ""
        yield fact("network", subject.number, f"{at}{to}, and tries to connect to none")


LEFT_OVER = Rule(
    cause="rendezvous-incomplete",
    title="Ranks that torchrun has started anew look for those of the attempt before",
    seen="All ranks are there and wait; those in init_process_group or new_group sleep in gloo's "
    "connecting, have TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT above 0, and "
    "two of them are not connected, while none tries to connect (SYN_SENT). Seen with torch 2.13: "
    "torchrun's store keeps the addresses of the attempt before. Where descriptors do not "
    "tell that, and in new_group, confidence is 0.70.",
    excluded="A rank tries to connect: `port-blocked`, `wrong-interface`. A rank still waits for "
    "an address in the store, or is elsewhere.",
    confidence=0.88,
    next_steps=(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend=c10d or --standalone: each "
        "attempt then has a store of its own",
    ),
    find=_left_over,
    needs=(More("descriptors", "whether it is connected to all others"),),
)
