"""What would decide between an explanation and the next: asked for by rules, of few ranks.

Pure: it says what is wanted and what has come, as the snapshot shows. Who asks is
`hangtop_core.collect.needs`, and a person where a rank would have to be paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.analysis.flight.ways import why_not
from hangtop_core.analysis.verdict.steps import on, spelt
from hangtop_core.diagnosis import Need, NeedKind
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.samples import StackSample
    from hangtop_core.text.commands import Word

MOST = 8
"""Needs of one diagnosis."""
UNSEEN = 4
"""Ranks of one diagnosis whose stacks are asked for again."""
STALE_S = 60.0
"""Seconds after which what a rank had open when it last moved is read again."""
_KEYS = {"--native": "c", "--trigger": "R"}
"""Keys of the screens that do what an option of a command does."""


class More(Struct, frozen=True):
    """What a rule asks for."""

    kind: NeedKind
    why: str
    """What it decides, after `which would tell`."""
    pid: int | None = None
    """A child of the rank, of which it is asked; None for the rank itself."""


OPEN: Mapping[str, tuple[More, ...]] = {
    "poll": (More("descriptors", "to whom the connections lead that it may wait on"),),
    "futex": (More("native stacks", "whether it is a lock of C code that it sleeps in"),),
    "sleep": (More("descriptors", "whether it sleeps between attempts to lock a file"),),
}
"""Asked of a rank that sleeps for no visible reason, by what it sleeps on."""
BY_WAIT = tuple(one for some in OPEN.values() for one in some)
OF_CHILD = (
    More("descriptors", "to whom the connections of the child lead that it waits for"),
    More("native stacks", "which C function the child is in that it waits for"),
)
"""What `doing.asked` asks of a child that a rank waits for."""
ISSUED = (More("recorder", "whether it has issued what the others wait for"),)
MORE_OR_LESS = (More("recorder", "which operation it has issued more or less than the others"),)
ALIKE = (More("recorder", "whether all ranks have issued the same operation"),)
COMPUTES = (More("native stacks", "which C function it computes in"),)
WHY_LEFT = (
    More("logs", "with what error the child ended"),
    More("kernel log", "whether the kernel ended the child"),
)
DRIVER = (More("kernel log", "what the driver said of that GPU, and when"),)


def of_child(some: Iterable[More], pid: int) -> tuple[More, ...]:
    """The same, asked of a child of the rank."""
    return tuple(msgspec.structs.replace(one, pid=pid) for one in some)


def needs(case: Case, hits: Iterable[tuple[Rule, Hit]]) -> tuple[Need, ...]:
    """What all verdicts ask for, each once, and how that stands.

    Of the first rank of each: those that are to blame together look alike. Of who is not there only
    the kernel of its node can be asked.
    """
    found: dict[tuple[NeedKind, str, int | None], Need] = {}
    for rule, hit in hits:
        for more in rule.needs if hit.needs is None else hit.needs:
            for subject in (hit.subjects or hit.explained)[:1]:
                pid = more.pid or subject.pid
                key = (more.kind, subject.rank.node, pid)
                if key not in found and len(found) < MOST:
                    found[key] = _standing(case, subject, more, pid)
            for one in () if hit.subjects or more.kind != "kernel log" else hit.absent[:1]:
                if one.node in case.nodes and len(found) < MOST:
                    need = Need(more.kind, one.rank, one.node, None, more.why)
                    found.setdefault((more.kind, one.node, None), _kernel_log(case, need))
    for subject in _long_unseen(case):
        rank = subject.rank
        need = Need("stacks", rank.rank, rank.node, subject.pid, "whether it still is where it was")
        found.setdefault(("stacks", rank.node, subject.pid), need)
    return tuple(found.values())


def _long_unseen(case: Case) -> Sequence[Subject]:
    """Who keeps a stalled job from being called hung only because nobody has looked lately.

    Stacks of what runs are taken the more seldom the less time its node has for it.
    """
    if case.progress.state != "unknown" or not case.waiters:
        return ()
    some = [s for s in case.live if s.standing.still_s < case.hang_after <= s.standing.stalled_s]
    # That a rank waits for data its workers tell.
    return [s for s in some if s.activity.kind != "data" and s.rank.sample is not None][:UNSEEN]


def _standing(case: Case, subject: Subject, more: More, pid: int) -> Need:
    rank = subject.rank
    need = Need(more.kind, rank.rank, rank.node, pid, more.why)
    if more.kind == "kernel log":
        return _kernel_log(case, need)
    if rank.ended and more.kind != "logs":
        return _not(need, "the process is gone")
    return _STANDING[more.kind](case, subject, need)


def _sample(subject: Subject, need: Need) -> StackSample | None:
    """That of the rank, or of its child."""
    rank = subject.rank
    own = need.pid == subject.pid
    return rank.sample if own else rank.child_samples.get(need.pid or 0)


def _stacks(case: Case, subject: Subject, need: Need) -> Need:
    sample = _sample(subject, need)
    if sample is None:
        return need
    return _not(need, sample.failure.text) if sample.failure is not None else _answered(need)


def _native(case: Case, subject: Subject, need: Need) -> Need:
    sample = _sample(subject, need)
    if sample is not None and sample.mode == "native" and sample.threads:
        return _answered(need)
    if sample is not None and sample.failure is not None:
        return _not(need, sample.failure.text)
    able = case.nodes[need.node].capabilities.get("ptrace") if need.node in case.nodes else None
    if able is not None and not able.ok:
        return _not(need, able.why or "its node does not allow ptrace")
    return _consent(case, subject, need, ("hangtop", "dump", "--pid", need.pid or 0, "--native"))


def _descriptors(case: Case, subject: Subject, need: Need) -> Need:
    rank = subject.rank
    own = need.pid == subject.pid
    table = rank.descriptors if own else rank.child_descriptors.get(need.pid or 0)
    if table is None or table.at < min(subject.standing.since, case.at - STALE_S):
        return need
    return _not(need, table.failure.text) if table.failure is not None else _answered(need)


def _recorder(case: Case, subject: Subject, need: Need) -> Need:
    recorder = subject.rank.recorder
    if recorder is None:
        return need
    if recorder.trace is not None:
        return _answered(need)
    codes = {(way.way, way.code) for way in recorder.ways}
    if codes & {("pipe", "there"), ("pipe", "rare")}:
        return _consent(
            case, subject, need, ("hangtop", "flight", "--pid", subject.pid, "--trigger")
        )
    if ("inject", "not-allowed") in codes:
        return _consent(
            case, subject, need, ("hangtop", "flight", "--pid", subject.pid, "--allow-inject")
        )
    told = recorder.failure.text if recorder.failure is not None else ""
    return _not(need, why_not(recorder.ways)[0] if recorder.ways else told)


def _logs(case: Case, subject: Subject, need: Need) -> Need:
    """A rank that has left is known by the files it printed to."""
    process = subject.rank.process
    files = [path for path in process.outputs if path.startswith("/")]
    read = [
        one
        for one in case.snapshot.outputs
        if one.node == need.node and (subject.pid in one.pids or one.path in files)
    ]
    if read:
        why = next((one.why for one in read if one.why is not None), None)
        return _answered(need) if any(one.why is None for one in read) else _not(need, why or "")
    if not files:
        return _not(need, "what it prints goes to no file that is known")
    return need


def _kernel_log(case: Case, need: Need) -> Need:
    """It flows by itself, where it may be read."""
    able = case.nodes[need.node].capabilities.get("kernel log") if need.node in case.nodes else None
    if able is None:
        return _not(need, "its node has not said whether it may be read")
    return _answered(need) if able.ok else _not(need, able.why or "it may not be read")


_STANDING: Mapping[NeedKind, Callable[[Case, Subject, Need], Need]] = {
    "stacks": _stacks,
    "native stacks": _native,
    "descriptors": _descriptors,
    "recorder": _recorder,
    "logs": _logs,
}


def _answered(need: Need) -> Need:
    return msgspec.structs.replace(need, state="answered")


def _not(need: Need, why: str) -> Need:
    return msgspec.structs.replace(need, state="not possible", told=clean(why, 300))


def _consent(case: Case, subject: Subject, need: Need, words: tuple[Word, ...]) -> Need:
    told, key = spelt(on(subject, *words), case.nodes).text, _KEYS.get(str(words[-1]), "")
    key = key if need.pid == subject.pid else ""  # screens do that of ranks
    return msgspec.structs.replace(need, state="needs consent", told=told, key=key)
