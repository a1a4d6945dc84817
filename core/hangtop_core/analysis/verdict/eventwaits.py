"""Event loops that wait for an answer: which connections they watch, and who is at their ends."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, peer
from hangtop_core.analysis.verdict.doing import does, name_child
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.sentences import sentence, several, since, who
from hangtop_core.analysis.verdict.steps import sockets_step
from hangtop_core.text.addresses import port_of, stays_here
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.stacks.kinds import Kind

_WAITS: frozenset[Kind] = frozenset({"queue", "join", "lock"})
_PID = re.compile(r" ?\(pid \d+\)|\bpid \d+ ")
_OPEN = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")


class _Asks(NamedTuple):
    """For whom a rank waits in an event loop."""

    thread: str
    """` for its thread 'a', which runs an event loop,`."""
    asked: list[Descriptor]
    end: str
    """Where its connections lead: `10.0.0.7:443, vllm (pid 9)`."""
    alike: str
    """The same without what is of this rank alone: ports and pids of its own child."""


def _in_loop(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found: dict[int, _Asks] = {}
    for subject in left:
        table = subject.rank.descriptors
        if subject.activity.kind not in _WAITS or subject.activity.by_thread or table is None:
            continue
        thread, number = _loop(case, subject)
        loop = descriptor(subject, number) if number is not None else None
        remote, asked = _asked(case, subject, loop) if loop is not None else ("", [])
        if asked:
            end, common = _ends(case, subject, remote, asked[0])
            found[id(subject)] = _Asks(thread, asked, end, common)
    waiting = [s for s in left if id(s) in found]
    for group in alike(waiting, lambda s: _same(s, found[id(s)])):
        yield _waits(case, group, [found[id(s)] for s in group])


def _same(subject: Subject, asks: _Asks) -> tuple[object, ...]:
    """What is the same of those that are told of together."""
    one = subject.activity
    alone = subject.number if one.thread else None
    return one.op, one.at, bool(asks.thread), asks.alike, alone


def _waits(case: Case, group: Sequence[Subject], asks: Sequence[_Asks]) -> Hit:
    first, one = group[0], asks[0]
    end, thread = one.end, one.thread
    if len(group) > 1:
        end, thread = one.alike, " for a thread each, which runs an event loop," if thread else ""
    shown = [(s, each) for s, some in zip(group, asks, strict=True) for each in some.asked]
    text = f"waits in {first.activity.op or 'an event loop'} at {first.activity.at}{thread}"
    return Hit(
        subjects=tuple(group),
        summary=sentence(
            case,
            f"{who(group)} {several(text, group)}",
            f"{since(case, group)}: nothing comes on".lstrip(": "),
            f"{plural(len(shown), 'connection')} to {end}",
        ),
        evidence=(
            *(
                fact("network", s.number, name_descriptor(each, peer(case, s, each)))
                for s, each in shown[:SHOWN]
            ),
            *common_facts(case, group),
        ),
        steps=(
            sockets_step(first, first.pid),
            Advice("look at what is at the other end, and give the request a timeout"),
        ),
    )


def _loop(case: Case, subject: Subject) -> tuple[str, int | None]:
    """Which thread runs the loop that it waits for, where that is another, and its epoll."""
    threads = threads_of(case, subject)
    if threads and is_loop(threads[0].frames):
        return "", threads[0].facts.fd if threads[0].facts is not None else None
    others = [one for one in threads[1:] if not one.idle]
    if len(others) != 1 or not is_loop(others[0].frames) or others[0].facts is None:
        return "", None
    return f" for its {others[0].name}, which runs an event loop,", others[0].facts.fd


def _asked(case: Case, subject: Subject, loop: Descriptor) -> tuple[str, list[Descriptor]]:
    """The one end that a loop may wait for, and its connections there; none where that is unclear.

    Who called at a port of its own asks it, and ranks wait for one another by other means.
    """
    some = subject.rank.opened
    serves = {port_of(s.local) for d in some if (s := d.socket) is not None and s.state == "LISTEN"}
    ends: dict[str, list[Descriptor]] = defaultdict(list)
    for one in some:
        socket = one.socket
        if socket is None or socket.family != "tcp" or socket.state not in _OPEN:
            continue
        if one.fd not in loop.watches or port_of(socket.local) in serves:
            continue
        other = peer(case, subject, one)
        rank = case.owners.rank(other.node, other.pid) if other is not None else None
        if rank is None and not subject.rank.process.meets_at(socket.remote):
            ends[socket.remote].append(one)
    return next(iter(ends.items())) if len(ends) == 1 else ("", [])


def _ends(case: Case, subject: Subject, remote: str, one: Descriptor) -> tuple[str, str]:
    """`10.0.0.7:443, its child vllm (pid 9), which sleeps`: where a connection leads.

    And the same as it is said of several ranks, of which each may have a child of its own.
    """
    named = clean(remote, 60)
    other = peer(case, subject, one)
    if other is None:
        here = f" on {subject.rank.node}" if stays_here(remote) else ""
        return named, named + here
    child = next((c for c in subject.rank.children if c.pid == other.pid), None)
    if child is None or other.node != subject.rank.node:
        pid = f" (pid {other.pid})" if other.pid is not None else ""
        text = f"{named}, {other.text}{pid}"
        return text, text
    doing, name = does(case, subject, child), name_child(case, subject, child)
    which = f", which {doing}" if doing else ""
    common = _PID.sub("", f"children of their own, each a {name}{which}")
    return f"{named}, its {name}{which}", common


IN_LOOP = Rule(
    cause="remote-service-wait",
    title="A rank waits in an event loop for an answer",
    seen="The main thread is in an event loop that waits, or waits for the only thread at work, "
    "which is; and all TCP connections that its epoll watches (/proc/PID/fdinfo) lead to one "
    "address, which is no rank and no store. Told is who is there; of a child, what it does.",
    excluded="Anything comes there, for ten minutes; others called at a port of its own; they lead "
    "to several addresses, or nowhere: `queue-wait`.",
    confidence=0.86,
    next_steps=("Look at what is at the other end", "Give the request a timeout"),
    find=_in_loop,
    needs=(More("descriptors", "to whom the connections of its event loop lead"),),
)
