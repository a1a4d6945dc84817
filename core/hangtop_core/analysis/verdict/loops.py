"""Event loops that wait for an answer: which connections they watch, and who is at their ends."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.doing import does, name_child
from hangtop_core.analysis.verdict.evidence import (
    SHOWN,
    common_facts,
    descriptor,
    fact,
    name_descriptor,
    peer,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.places import port_of
from hangtop_core.text import clean, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.dictionary import Kind
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.descriptors import Descriptor

_WAITS: frozenset[Kind] = frozenset({"queue", "join", "lock"})
_OPEN = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")


def _in_loop(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        table = subject.rank.descriptors
        if subject.activity.kind not in _WAITS or subject.activity.by_thread or table is None:
            continue
        thread, number = _loop(case, subject)
        loop = descriptor(subject, number) if number is not None else None
        remote, asked = _asked(case, subject, loop) if loop is not None else ("", [])
        if not asked:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits in {subject.activity.op or 'an event loop'} at "
                f"{subject.activity.at}{thread}",
                f"{case.since(subject)}: nothing comes on".lstrip(": "),
                f"{plural(len(asked), 'connection')} to {clean(remote, 60)}"
                f"{_at_other_end(case, subject, asked[0])}",
            ),
            evidence=(
                *(
                    fact(
                        "network",
                        subject.number,
                        name_descriptor(one, peer(case, subject, one)),
                    )
                    for one in asked[:SHOWN]
                ),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, f"ss -tnpi | grep pid={subject.pid},"),
                "look at what is at the other end, and give the request a timeout",
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
    table = subject.rank.descriptors
    some = table.descriptors if table is not None else ()
    serves = {port_of(s.local) for d in some if (s := d.socket) is not None and s.state == "LISTEN"}
    store = subject.rank.process.env.get("MASTER_PORT", "-")
    ends: dict[str, list[Descriptor]] = defaultdict(list)
    for one in some:
        socket = one.socket
        if socket is None or socket.family != "tcp" or socket.state not in _OPEN:
            continue
        if one.fd not in loop.watches or port_of(socket.local) in serves:
            continue
        other = peer(case, subject, one)
        rank = case.owners.rank(other.node, other.pid) if other is not None else None
        if rank is None and port_of(socket.remote) != store:
            ends[socket.remote].append(one)
    return next(iter(ends.items())) if len(ends) == 1 else ("", [])


def _at_other_end(case: Case, subject: Subject, one: Descriptor) -> str:
    """`, its child python (pid 9), which sleeps at serve.py:7`, or what else is known of it."""
    other = peer(case, subject, one)
    if other is None:
        return ""
    child = next((c for c in subject.rank.children if c.pid == other.pid), None)
    if child is None or other.node != subject.rank.node:
        return f", {other.text}" if other.pid is None else f", {other.text} (pid {other.pid})"
    doing = does(case, subject, child)
    return f", its {name_child(case, subject, child)}{f', which {doing}' if doing else ''}"


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
