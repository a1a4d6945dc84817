"""Causes in the order of communication, and what is left when nothing else explains a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.dictionary import PEER_TO_PEER, ROOTED, Kind
from hangtop_core.analysis.verdict.base import STALLED, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    is_are,
    sentence,
    several,
    who,
)
from hangtop_core.analysis.verdict.filestore import file_steps, over_a_file
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on, trace_steps
from hangtop_core.analysis.verdict.storewait import alone_with_keys
from hangtop_core.text import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence, JobState

_NOT_STUCK: frozenset[JobState] = frozenset({"progressing"})
_OPEN: Mapping[str, tuple[More, ...]] = {
    "poll": (More("descriptors", "to whom the connections lead that it may wait on"),),
    "futex": (More("native stacks", "whether it is a lock of C code that it sleeps in"),),
    "sleep": (More("descriptors", "whether it sleeps between attempts to lock a file"),),
}
"""Asked of a rank that sleeps for no visible reason, by what it sleeps on."""
_SAME_LINE: frozenset[Kind] = frozenset({"collective", "work-wait", "send", "recv", "new-group"})
"""Waits that the program calls itself: with which group and tensors, stacks do not tell."""
_COMPUTES: frozenset[Kind] = frozenset({"busy", "inline-data", "importing"})
_AT_WORK: frozenset[Kind] = frozenset({"busy", "sleep", "inline-data", "importing", "data"})


def _lacking(case: Case, numbers: set[int]) -> Operation | None:
    """What the recorders say others wait for that these ranks have not issued."""
    return next((one for one in case.in_flight if numbers & set(one.missing)), None)


def _flight_facts(one: Operation | None, numbers: Sequence[int]) -> list[Evidence]:
    if one is None:
        return []
    issued = one.classes[0][1]
    text = f"{name_ranks(issued)} issued {one.entry.name} on group {one.label}"
    if one.missing:
        text += f"; the last operation of {name_ranks(one.missing)} comes before it"
    for entry, ranks in one.classes[1:]:
        text += f"; {name_ranks(ranks)} issued {entry.call.text} as #{entry.seq}"
    rank = numbers[0] if len(numbers) == 1 else None
    return [fact("flight", rank, text)]


def _missing(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.waiters:
        return
    outside = [s for s in left if s.activity.kind in ("sleep", "waiting", "inline-data")]
    for group in alike(outside, lambda s: (s.activity.site, s.activity.text)):
        numbers = [s.number for s in group]
        one = _lacking(case, set(numbers))
        text, members = case.waiting_classes[0]
        what = text.removeprefix("in ").removeprefix("for ")
        what = f"{one.entry.name} on group {one.label}" if one else what
        activity = group[0].activity
        yield Hit(
            subjects=group,
            summary=(
                f"{who(group)} did not issue what {case.who_waits(members, 'for')}: {what}. "
                f"{is_are(group, 'It', 'They')} {several(activity.text, group)} at {activity.at} "
                f"{case.since(group[0])}"
            ),
            evidence=(
                *_flight_facts(one, numbers),
                *common_facts(case, group),
            ),
            steps=(
                f"compare {activity.at} with the call the others are in: look for a condition that "
                f"differs between ranks",
                *trace_steps(group[0]),
            ),
            confidence=0.95 if one else None,
            needs=(*_OPEN.get(activity.family or "", ()), *MISSING.needs),
        )


def _mismatched(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    classes = case.waiting_classes
    kinds = {s.activity.kind for s in case.waiters}
    left_to_others = "new-group" in kinds or kinds <= PEER_TO_PEER
    left_to_others = left_to_others or bool(_heads(case) or alone_with_keys(case))
    if len(classes) < 2 or case.suspects or left_to_others or case.by_recorders is not None:
        return
    one = next((p for p in case.in_flight if p.mismatched), None)
    most = classes[0][1]
    minority = [s for _, members in classes[1:] for s in members]
    tied = len(classes[1][1]) == len(most)
    if one is not None:
        blamed = set(one.mismatched)
        minority = [s for s in case.waiters if s.number in blamed]
    elif tied:
        # Two halves: the flow of the program gives no majority to trust.
        minority = list(classes[1][1])
    starting = [s for s in case.waiters if s.activity.kind == "init"]
    minority = starting or minority
    if not minority:
        return
    confidence = 0.95 if one else 0.45 if tied else 0.8 if len(classes) == 2 else 0.55
    early = ""
    if one is None and (op := most[0].activity.op) in ROOTED:
        confidence = min(confidence, 0.5)
        early = f". From {op} some may rightly be through before others"
    said = "; ".join(
        f"{name_ranks(members)} {several(f'waits {text}', members)}"
        for text, members in classes[:4]
    )
    seq = f" as #{one.node.seq} on group {one.label}" if one else ""
    than = f"in another operation than {'the other half' if tied and not one else 'most'}"
    why = "Ranks skipped or added an operation before, or took another branch"
    if starting:
        than = "not through with init_process_group, which others have left"
        why = "Their connections may not have been made, as where the store has keys of old ranks"
    yield Hit(
        subjects=tuple(minority),
        summary=(
            f"{who(minority)} {is_are(minority, 'is', 'are')} {than}{seq}: {said}. {why}{early}"
        ),
        evidence=(
            *_flight_facts(one, [s.number for s in minority]),
            *common_facts(case, minority),
        ),
        steps=(
            "compare the two call sites and the conditions that lead to them",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective on the next run",
        ),
        confidence=confidence,
    )


def _heads(case: Case) -> tuple[Subject, ...]:
    """Ranks in another operation, where most wait in send or recv: what they wait for is theirs."""
    passing = [s for s in case.waiters if s.activity.kind in PEER_TO_PEER]
    others = tuple(s for s in case.waiters if s.activity.kind not in PEER_TO_PEER)
    told = case.suspects or case.by_recorders is not None
    return others if not told and len(passing) > max(len(others), 1) else ()


def _chain(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    heads = _heads(case)
    if not heads:
        return
    passing = [s for s in case.waiters if s.activity.kind in PEER_TO_PEER]
    calls = " or ".join(sorted({s.activity.op or s.activity.kind for s in passing}))
    first = heads[0].activity
    yield Hit(
        subjects=heads,
        explained=case.waiters,
        summary=(
            f"{name_ranks(passing)} {is_are(passing, 'waits', 'wait')} in {calls}, one for another "
            f"{case.ago(case.progress.since)}, and {who(heads)} {is_are(heads, 'is', 'are')} "
            f"elsewhere: {is_are(heads, 'it', 'they')} {several(first.text, heads)} at {first.at}. "
            f"A send or recv of {is_are(heads, 'it', 'theirs')} is lacking, or one is too many"
        ),
        evidence=common_facts(case, heads),
        steps=(
            f"compare how often {name_ranks(heads)} and {is_are(heads, 'its', 'their')} neighbours "
            f"send and receive before {first.at}",
            *trace_steps(heads[0]),
        ),
    )


def _p2p(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    waiting = case.waiters
    kinds = {s.activity.kind for s in waiting}
    if case.suspects or len(waiting) < 2 or not kinds <= PEER_TO_PEER:
        return
    if case.by_recorders is not None:
        return
    if len(kinds) > 1:
        yield _mixed(case, waiting)
        return
    kind = waiting[0].activity.kind
    other = "recv" if kind == "send" else "send"
    # Who stands at the same call wait for one another; who stands elsewhere waits for them.
    circle = case.waiting_classes[0][1]
    circle = waiting if len(circle) < 2 else circle
    yield Hit(
        subjects=circle,
        explained=waiting,
        summary=(
            f"{name_ranks(waiting)} all wait in {waiting[0].activity.op or kind} "
            f"{case.ago(case.progress.since)}, and nobody is in the matching {other}"
            + (f"; {name_ranks(circle)} at the same call" if len(circle) < len(waiting) else "")
        ),
        evidence=common_facts(case, circle),
        steps=("let neighbours call send and recv in opposite order, or use batch_isend_irecv",),
    )


def _mixed(case: Case, waiting: Sequence[Subject]) -> Hit:
    """Some send and some receive, and none of it meets: stacks do not tell to and from whom."""
    said = "; ".join(
        f"{name_ranks(members)} {several(f'waits {text}', members)}"
        for text, members in case.waiting_classes[:4]
    )
    return Hit(
        subjects=tuple(waiting),
        summary=(
            f"{name_ranks(waiting)} wait in send and recv for one another "
            f"{case.ago(case.progress.since)}, and no send meets its recv: {said}"
        ),
        evidence=common_facts(case, waiting),
        steps=(
            "compare how often, and in which order, neighbours send and receive in that phase",
            on(waiting[0], f"hangtop dump --pid {waiting[0].pid} --locals"),
        ),
        confidence=0.65,
    )


def _straggler(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.waiters or case.waited_s < 5.0:
        return
    slow = [s for s in left if s.activity.kind in _AT_WORK]
    for group in alike(slow, lambda s: (s.activity.kind, s.activity.site)):
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'is', 'are')} slow, not stuck: "
                f"{is_are(group, 'it', 'they')} {several(group[0].activity.text, group)} at "
                f"{group[0].activity.at}, and {is_are(group, 'gets', 'get')} on; the others have "
                f"waited {duration(case.waited_s)}",
            ),
            evidence=common_facts(case, group),
            steps=(on(group[0], f"py-spy record -d 10 -o profile.svg --pid {group[0].pid}"),),
        )


def _long_phase(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.waiters or not case.subjects or len(left) != len(case.subjects):
        return
    stalled = case.progress.stalled_for_s or 0.0
    # A healthy job may pause between steps whenever it is sampled: sleeping tells nothing.
    if any(s.activity.kind not in _COMPUTES for s in left) or stalled < case.hang_after:
        return
    first = left[0].activity
    yield Hit(
        subjects=(),
        explained=tuple(left),
        summary=(
            f"no rank waits for another: {name_ranks(left)} {several(first.text, left)} at "
            f"{first.at}. A long phase, not a hang"
        ),
        evidence=common_facts(case, left),
        steps=(on(left[0], f"py-spy record -d 10 -o profile.svg --pid {left[0].pid}"),),
    )


def _unknown(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    # A rank that is yet to be sampled is no suspect.
    seen = [s for s in left if s.rank.sample is not None]
    blind = [s for s in seen if s.activity.kind in ("unknown", "waiting", "idle-worker")]
    for group in alike(blind, lambda s: s.activity.text):
        yield Hit(
            subjects=group,
            summary=sentence(case, f"{who(group)} {several(group[0].activity.text, group)}"),
            evidence=common_facts(case, group),
            steps=trace_steps(group[0]),
            confidence=0.5 if case.waiters and len(group) < len(case.waiters) else 0.3,
        )
    if case.suspects or len(case.waiting_classes) != 1 or case.progress.state != "hung":
        return
    text, members = case.waiting_classes[0]
    size = case.job.world_size
    partial = size is not None and size > len(case.subjects)
    everybody = f"all {len(members)} ranks seen wait"
    if len(case.heard(members)) < len(members):
        everybody = f"all {len(members)} ranks waited when last seen"
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=(
            f"{everybody} {text} {case.ago(case.progress.since)}; nothing "
            + (
                f"differs between them, but WORLD_SIZE is {size}: look on the other nodes"
                if partial
                else "differs between them, as far as stacks and processes tell: ruled out are a "
                "rank that stays away, another call site, stopped and lost processes. What is left "
                f"is {_what_is_left(case, members)}"
            )
        ),
        steps=(
            *(file_steps(members[0]) if over_a_file(members) else ()),
            on(members[0], f"hangtop dump --pid {members[0].pid} --native"),
            on(members[0], f"ss -tnpi | grep pid={members[0].pid},"),
        ),
        confidence=0.3,
    )


def _what_is_left(case: Case, members: Sequence[Subject]) -> str:
    """What may keep ranks that wait alike, and cannot be seen from outside."""
    kind = members[0].activity.kind
    if over_a_file(members):
        return "the file that they seem to meet over (FileStore): another one, or an old one"
    if kind == "init":
        return "what they were told there (init_method, store), the network or the library"
    if case.picture is None and kind in _SAME_LINE:
        return "the network, the library, or a group, root or tensor that differs at that line"
    return "the network or the library"


P2P = Rule(
    cause="p2p-deadlock",
    title="All ranks send or receive, and nothing meets",
    seen="All that wait are in send, or all in recv, and nobody is outside communication; with "
    "less confidence, some in send and some in recv.",
    excluded="A rank is outside communication: it is the head of the chain.",
    confidence=0.85,
    next_steps=("Order send and recv by rank", "Use batch_isend_irecv"),
    find=_p2p,
)
CHAIN = Rule(
    cause="p2p-chain",
    title="Ranks wait for sends in a chain, and its head is in another operation",
    seen="More than half of the ranks wait in send or recv, and the others in something else.",
    excluded="A rank is outside communication: it is the head. The recorders of all were read.",
    confidence=0.75,
    next_steps=("Compare how often neighbours send and receive",),
    find=_chain,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
MISMATCHED = Rule(
    cause="mismatched-collective",
    title="Ranks wait in different operations",
    seen="All ranks wait in communication, in different operations or at different lines; or the "
    "recorders show different operations with one sequence number.",
    excluded="A rank is outside communication: the others are its victims.",
    confidence=0.8,
    next_steps=("Compare the call sites", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    find=_mismatched,
    needs=(More("recorder", "which operation it has issued more or less than the others"),),
)
MISSING = Rule(
    cause="missing-collective",
    title="A rank stays away from a collective",
    seen="Others wait in a collective; this rank sleeps or waits in user code that is none of the "
    "known blocking calls. With recorders: its last sequence number is lower. Where all wait "
    "alike: NCCL's RAS, asked by `--ras`, counts fewer launches of a minority (confidence 0.70).",
    excluded="Any of the causes above explains where the rank is.",
    confidence=0.9,
    next_steps=("Compare its stack with the others' call site", "Look for rank conditions"),
    find=_missing,
    needs=(More("recorder", "whether it has issued what the others wait for"),),
)
STRAGGLER = Rule(
    cause="straggler",
    title="A rank is slow, not stuck",
    seen="Others have waited for seconds, and this rank's functions change between samples.",
    excluded="Its stack stays the same for the hang time.",
    confidence=0.8,
    next_steps=("Profile it",),
    find=_straggler,
    states=_NOT_STUCK,
)
LONG_PHASE = Rule(
    cause="long-phase",
    title="A long phase, not a hang",
    seen="No rank waits for another, all are at work.",
    excluded="Somebody waits.",
    confidence=0.7,
    next_steps=("Wait; profile a rank",),
    find=_long_phase,
    states=STALLED | _NOT_STUCK,
)
UNKNOWN = Rule(
    cause="unknown",
    title="No cause could be told",
    seen="All ranks seen wait in the same call, or the ranks left gave no stack.",
    excluded="Anything else.",
    confidence=0.3,
    next_steps=("Look at native stacks and sockets", "Read the blind spots"),
    find=_unknown,
    needs=(
        More("recorder", "which operation is under way"),
        More("descriptors", "what it waits on"),
        More("native stacks", "which C function it is in"),
    ),
)
