"""Causes that only logs tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule, Subject
from hangtop_core.analysis.verdict.endings import aborted, by_segment
from hangtop_core.analysis.verdict.evidence import absent
from hangtop_core.analysis.verdict.leftover import apart
from hangtop_core.analysis.verdict.linesneed import COMPLETE, NEEDS
from hangtop_core.analysis.verdict.logfacts import SHORTLY_S, overtaken
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import as_host, on
from hangtop_core.analysis.verdict.storeaway import known_who
from hangtop_core.analysis.verdict.storetaken import Binder, binder, port_holder
from hangtop_core.logs.meaning.steps import BY_TEXT, FIRST, HERE, LIVE, STEPS
from hangtop_core.text.commands import Command, Sign, Word, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.text.commands import Step

_AT_START = frozenset({"store-unreachable", "store-port-taken", "wrong-interface"})
"""Causes that matter only until ranks have met."""
_BY_DRIVER = frozenset({"gpu-xid", "gpu-ecc", "gpu-nvlink"})
"""Causes that other rules tell of where a GPU's driver can be asked."""
TOLD_WHY = 0.96
"""Why a rank has left, or lost what it waits for, is worth more than that it has."""
_ABORTS = frozenset({"mismatched-size"})


def _find(cause: str, case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = [one for one in case.said.verdicts if one.cause == cause]
    if not found:
        return
    binds = binder(case, case.said.texts(cause)) if cause == "store-port-taken" else Binder()
    if cause in _AT_START and not (
        not case.waiters
        or binds.notes
        or case.progress.state == "exited"
        or any(s.activity.kind in ("init", "store") for s in case.waiters)
    ):
        return
    if case.waiters and overtaken(case, case.said.times(cause)):
        return
    if cause == "port-blocked" and apart(case) is not None:
        return  # of the attempt before: none tries to connect
    if (cause in _BY_DRIVER and case.xids) or (cause == "store-unreachable" and known_who(case)):
        return  # who it is and where, is known better
    for one in found:
        ranks = {culprit.rank for culprit in one.culprits}
        blamed = tuple(s for s in case.subjects if s.number in ranks)
        if not ranks and cause in _ABORTS and _printed_by(case, "G4"):
            # What the C++ runtime prints as it aborts has no rank before it.
            blamed = aborted(case)
        away = [s for s in case.seats if s.rank in ranks and s.unseen is None]
        owner, whose = by_segment(case, one) if not ranks else (None, "")
        blamed = blamed or ((owner,) if owner is not None else ())
        told_why = any(s.activity.kind in GONE for s in blamed) or bool(away or owner)
        printers = _printed_by(case, "N11") if cause in _ABORTS else frozenset()
        if printers:
            told_why |= any(s.activity.kind in GONE and s.number in printers for s in case.subjects)
        notes: list[str] = []
        if cause == "store-port-taken":
            away += [one for one in binds.absent if one not in away]
            blamed, notes = binds.subjects or blamed, [*binds.notes]
            gone = any(s.activity.kind in GONE for s in case.subjects)
            told_why = gone or bool(notes) or any(seat.beside for seat in case.seats)
        has = port_holder(case) if cause == "store-port-taken" else None
        notes += [has.text] if has else []
        yield Hit(
            subjects=blamed,
            absent=absent(away),
            explained=(*case.waiters, *(_ended(case) if told_why else ())),
            summary=sentence(case, "; ".join([whose or one.summary, *notes]), blamed=blamed),
            evidence=(*one.evidence, *(has.facts if has else ())),
            steps=(
                *(has.steps if has else ()),
                *live_steps(case, one.next_steps, blamed),
            ),
            confidence=max(one.confidence, TOLD_WHY) if told_why else one.confidence,
        )


def _printed_by(case: Case, code: str) -> frozenset[int | None]:
    """Ranks that have printed a known line, be it in an exception; None where not told who has."""
    records = (record for one in case.said.folds for record in one.members)
    return frozenset(r.rank for r in records if r.fields.get("known", r.code) == code)


def live_steps(case: Case, said: Sequence[str], blamed: Sequence[Subject]) -> tuple[Step, ...]:
    """What logs say is to be done, for the nodes and the store that are known here."""
    first = next((s for s in case.subjects if s.number == 0), None)
    steps: list[Step] = []
    for step in map(BY_TEXT.__getitem__, said):
        where = step.why if isinstance(step, Command) else ""
        if where == LIVE:
            continue  # that is what is being done
        subject = blamed[0] if where == HERE and blamed else first if where == FIRST else None
        if isinstance(step, Command) and case.subjects:
            known = _known((subject or case.subjects[0]).rank.process.env)
            words = tuple(known.get(word, word) for word in step.words)
            step = Command("", words, where) if subject is None else on(subject, *words)
        steps.append(step)
    return tuple(steps)


def _known(env: Mapping[str, str]) -> dict[Word, Word]:
    """What stands for variables of the store in commands, as far as they are known."""
    host, port = as_host(env.get("MASTER_ADDR", "")), env.get("MASTER_PORT", "")
    has_port = port.isascii() and port.isdecimal()
    known: dict[Word, Word] = {Sign.MASTER_ADDR: host} if host else {}
    known |= {Sign.MASTER_SOCKET: f":{port}"} if has_port else {}
    return known | ({Sign.CONNECT: f"</dev/tcp/{host}/{port}"} if host and has_port else {})


def _ended(case: Case) -> Iterator[Subject]:
    """In a job that has ended: all of its ranks, which left because of what the log tells."""
    if case.progress.state == "exited":
        yield from case.subjects


def _rule(cause: str, title: str, seen: str, excluded: str, confidence: float) -> Rule:
    return Rule(
        cause=cause,
        title=title,
        seen=seen,
        excluded=excluded,
        confidence=confidence,
        next_steps=texts(STEPS[cause]),
        find=lambda case, left: _find(cause, case, left),
        states=START_OR_END,
        needs=NEEDS.get(cause, ()),
        complete=COMPLETE.get(cause, ""),
    )


_NOT_FIRST = (
    "An error of its own that another rank printed before. A line of an earlier run, or from over "
    f"{SHORTLY_S:.0f} seconds before the job was last seen to get on."
)
_ASKED = "The driver's errors are known from NVML or the kernel log: see above. " + _NOT_FIRST

RULES = (
    _rule(
        "nccl-ib-error",
        "InfiniBand gave up on a peer",
        "In a log: `NET/IB : Got completion from peer ... with status=12` (retries exceeded), or "
        "another error than 5, which only follows. Where each of two nodes prints it about the "
        "other: no path between the two, and nobody is blamed.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "ib-port-down",
        "An InfiniBand port went down",
        "In a log: `NET/IB : ... async fatal event`, `Device ... marked as failed`.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "wrong-interface",
        "NCCL uses an interface that leads to no other node",
        "In a log: `Bootstrap : Using docker0` or `NET/Socket : Using [0]lo`, also virbr, veth, "
        "cni and the like, in a job of several nodes, with an error or a wait in vain after it.",
        "The job runs on one node. The ranks have met. With less confidence where a communicator "
        "was complete.",
        0.85,
    ),
    _rule(
        "store-port-taken",
        "Another program has the port of the store",
        "In a log: `EADDRINUSE`, or a client whose ping was answered by something that is no store "
        "(`Ping failed, invalid value returned from server`).",
        "The ranks have met.",
        0.9,
    ),
    _rule(
        "store-unreachable",
        "The store cannot be reached",
        "In a log: `failed to connect/validate to host`, `client socket has timed out`, again and "
        "again while ranks are in init_process_group.",
        "The ranks have met. Another program answers there: `store-port-taken`.",
        0.75,
    ),
    _rule(
        "mismatched-size",
        "Ranks exchange what does not fit together",
        "In a log: `Received data size doesn't match expected size`, of gloo, which then aborts. "
        "Sizes and types are both told in bytes. Or `message truncated : receiving`, of NCCL, with "
        "confidence 0.80: which rank is to blame it does not tell.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "shm-too-small",
        "Shared memory is too small",
        "In a log: `unable to allocate shared memory`, `Error while creating shared memory "
        "segment`, `out of shared memory`.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "gpu-xid",
        "A log tells of a GPU's error",
        "In a log: `NVRM: Xid`, as consoles and syslog have it; not 43 and 45, which only follow.",
        _ASKED,
        0.85,
    ),
    _rule(
        "gpu-ecc",
        "A rank was told of an error in its GPU's memory",
        "In a log: `uncorrectable ECC error`.",
        _ASKED,
        0.9,
    ),
    _rule(
        "gpu-nvlink",
        "A rank was told of an error of NVLink",
        "In a log: `uncorrectable NVLink error`.",
        _ASKED,
        0.9,
    ),
)
