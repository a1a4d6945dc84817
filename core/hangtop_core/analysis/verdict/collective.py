"""Causes in the order of communication, and what is left when nothing else explains a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.gpus import doing
from hangtop_core.analysis.native import WAITS_FOR_GPU
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.branches import branch
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.filestore import file_steps, over_a_file
from hangtop_core.analysis.verdict.leftover import apart, left_over
from hangtop_core.analysis.verdict.naming import name_classes, name_ranks
from hangtop_core.analysis.verdict.needs import OPEN, More
from hangtop_core.analysis.verdict.outofstep import crossed, in_own_branch, out_of_step
from hangtop_core.analysis.verdict.packages import other_folder
from hangtop_core.analysis.verdict.peertopeer import ABSENT, heads, unmet
from hangtop_core.analysis.verdict.raised import also
from hangtop_core.analysis.verdict.recorderfacts import AGREED, flight_facts, reduced_none
from hangtop_core.analysis.verdict.sentences import does, is_are, sentence, several, until, who
from hangtop_core.analysis.verdict.steps import dump_step, sockets_step, trace_steps
from hangtop_core.analysis.verdict.storewait import alone_with_keys
from hangtop_core.analysis.verdict.uneven import unused
from hangtop_core.jobs.joining import size_name
from hangtop_core.stacks.dictionary import ROOTED
from hangtop_core.stacks.kinds import PEER_TO_PEER, Kind
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.verdict.case import Case

_OTHER_WAY = "Ranks skipped or added an operation before, or took another branch"
_NOT_THERE = "What a GPU waits for was started before the line in which its rank waits for it"
UNSURE = 0.6
"""Most that is said of ranks in other lines where all wait for their GPUs."""
KNOWN_WHY = 0.75
"""Most that is said of ranks in another operation where lines of the program tell why."""
UNOBSERVED = 0.45
"""The same where a node of the job is not observed: some may wait for its ranks."""
_SAME_LINE: frozenset[Kind] = frozenset({"collective", "work-wait", "send", "recv", "new-group"})
"""Waits that the program calls itself: with which group and tensors, stacks do not tell."""


def _lacking(case: Case, numbers: set[int]) -> Operation | None:
    """What the recorders say others wait for that these ranks have not issued."""
    return next((one for one in case.in_flight if not numbers.isdisjoint(one.missing)), None)


def _missing(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.waiters:
        return
    outside = [s for s in left if s.activity.kind in ABSENT]
    text, members = case.waiting_places[0]
    others_wait = case.who_waits(members, "for") if outside else ""
    for group in alike(outside, lambda s: (s.activity.site, s.activity.text)):
        numbers = [s.number for s in group]
        one = _lacking(case, set(numbers))
        what = text.removeprefix("in ").removeprefix("for ")
        if members[0].activity.text == WAITS_FOR_GPU:
            others_wait = others_wait if one else f"the GPUs of {others_wait}"
            what = what.replace("its GPU at", "an operation up to")
        what = f"{one.entry.name} on group {one.label.removeprefix('group ')}" if one else what
        activity, left_by = group[0].activity, also(case, group)
        yield Hit(
            subjects=group,
            summary=(
                f"{who(group)} did not issue what {others_wait}: {what}. "
                f"{is_are(group, 'It', 'They')} {does(group)} at {activity.at}{until(group)} "
                f"{case.since(group[0])}" + (f". {left_by}" if left_by else "")
            ),
            evidence=(
                *flight_facts(one, numbers),
                *common_facts(case, group),
            ),
            steps=(
                Advice(
                    f"compare {activity.at} with the call the others are in: look for a "
                    f"condition that differs between ranks"
                ),
                *trace_steps(group[0]),
            ),
            confidence=0.95 if one else None,
            needs=(*OPEN.get(activity.family or "", ()), *MISSING.needs),
        )


def _left_to_others(case: Case) -> bool:
    """Whether other rules say more of ranks that wait in different operations."""
    kinds = {s.activity.kind for s in case.waiters}
    if "new-group" in kinds or kinds <= PEER_TO_PEER or case.by_recorders is not None:
        return True
    if case.seats and case.passing:
        return True  # who sends or receives may wait for one that is not seen
    if any(other_folder(case)):
        return True  # two releases of a package issue different operations
    if apart(case) is not None or heads(case) or unmet(case) or alone_with_keys(case):
        return True
    return out_of_step(case) is not None or crossed(case) is not None


def _mismatched(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    classes = case.waiting_classes
    if len(classes) < 2 or case.suspects or _left_to_others(case):
        return
    one = next((p for p in case.in_flight if p.mismatched), None)
    most = classes[0][1]
    minority = [s for _, members in classes[1:] for s in members]
    tied = len(classes[1][1]) == len(most)
    if one is not None:
        blamed = set(one.mismatched)
        minority = [s for s in case.waiters if s.number in blamed]
        tied = len(one.classes[1][1]) == len(one.classes[0][1])
    elif tied:
        # Two halves: the flow of the program gives no majority to trust.
        minority = list(classes[1][1])
    else:
        minority = list(in_own_branch(case, [some for _, some in classes[1:]])) or minority
    starting = list(case.joining)
    minority = starting or minority
    told_wrong = bool(starting and case.contradictions)  # which keep them there
    if not minority or len(starting) == len(case.waiters) or told_wrong:
        return
    under, on_gpus = branch(case, minority, most), one is None and _wait_for_gpus(case)
    if on_gpus and (not under or _compute(case, minority)):
        return  # where ranks run out of what they can do without their GPUs differs anyway
    confidence = 0.45 if tied else 0.95 if one else 0.8 if len(classes) == 2 else 0.55
    early = "" if one is not None else _early(most, minority, tied)
    if early and most[0].activity.op in ROOTED:
        confidence = min(confidence, 0.5)
    said = name_classes(classes)
    seq = f" as #{one.node.seq} on group {one.label.removeprefix('group ')}" if one else ""
    than = f"in another operation than {'the other half' if tied else 'most'}"
    why = reduced_none(case, one, minority) or _OTHER_WAY
    if on_gpus:
        than = than.replace("in another operation", "elsewhere")
        why, confidence = _NOT_THERE, min(confidence, UNSURE)
    if _told(case, minority, tied):
        confidence = min(confidence, KNOWN_WHY)
    if one is None and any(seat.unseen for seat in case.seats):
        confidence = min(confidence, UNOBSERVED)
    if starting:
        than, why = _joining(starting)
    yield Hit(
        subjects=tuple(minority),
        summary=(
            f"{who(minority)} {is_are(minority, 'is', 'are')} {than}{seq}: {said}. {why}{early}"
            f"{under}"
        ),
        evidence=(
            *flight_facts(one, [s.number for s in minority]),
            *common_facts(case, minority),
        ),
        steps=(
            Advice("compare the two call sites and the conditions that lead to them"),
            *unused(case, minority),
            Advice("TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective on the next run"),
        ),
        confidence=confidence,
    )


def _joining(starting: Sequence[Subject]) -> tuple[str, str]:
    """What ranks that still join are in, and why."""
    if all(s.activity.op is None for s in starting):
        return "in TCPStore, in which others are not", "Its host waits there for all ranks"
    return (
        "not through with init_process_group, which others have left",
        "Their connections may not have been made, as where the store has keys of old ranks",
    )


def _wait_for_gpus(case: Case) -> bool:
    return all(s.activity.text == WAITS_FOR_GPU for s in case.waiters)


def _compute(case: Case, some: Sequence[Subject]) -> bool:
    """Whether GPUs of these ranks have work of their own."""
    return any(doing(gpu) == "computes" for s in some for gpu in case.gpus(s))


def _early(most: Sequence[Subject], minority: Sequence[Subject], tied: bool) -> str:
    """That who is not in a collective with a root any more may be through with it."""
    if (op := most[0].activity.op) in ROOTED:
        return f". From {op} some may rightly be through before others"
    if tied or (op := minority[0].activity.op) not in ROOTED:
        return ""
    # Its root waits for each of the others, which go on as soon as they have their part.
    whom = "it" if len(minority) == 1 else "they"
    return (
        f". From {op} some may rightly be through before others, so that {whom} may wait for one "
        "of those, which has left it out"
    )


def _told(case: Case, odd: Sequence[Subject], tied: bool) -> bool:
    """Whether the lines of the program tell why ranks are where the others are not.

    Which ranks these are, one half or the other, they may say alone.
    """
    blamed = {s.number for s in odd}
    known = [group for group, _ in case.conditional]
    known += [hit.subjects for hit in case.uneven if hit.confidence in (None, AGREED)]
    known += [hit.subjects for hit in (*case.caught, *case.left_early)]
    return any(tied or {s.number for s in group} == blamed for group in known)


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
    if case.progress.state == "unknown" and not case.waiters:
        yield from _asleep(case, left)
    alike_ = len(case.waiting_classes) == 1 and case.knot is None
    if case.suspects or case.progress.state != "hung":
        return
    if not alike_:
        yield from _for_others(case)
        return
    text, members = case.waiting_classes[0]
    size = case.job.world_size
    partial = size is not None and size > len(case.subjects)
    told_size = f"{size_name(case.job)} is {size}"
    told = f"but {told_size}: look on the other nodes"
    everybody, starts = f"all {len(members)} ranks seen wait", members[0].activity.kind == "init"
    same = "nothing differs between them"
    if len(members) == 1:
        everybody, same = "the only rank seen waits", "there is none to compare it with"
    if len(case.heard(members)) < len(members):
        everybody = f"{everybody.partition(' seen')[0]} waited when last seen"
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=(
            f"{everybody} {text} {case.lasting(case.progress.since)}; {same}, "
            + (
                told
                if partial
                else "as far as stacks and processes tell: ruled out are "
                f"{'' if size is None else f'a rank that stays away ({told_size}), '}another call "
                f"site, stopped and lost processes. What is left is {_what_is_left(case, members)}"
            )
            + _away(case, members)
        ),
        steps=(
            *(file_steps(members[0]) if over_a_file(members) else ()),
            *(dump_step(s, "--each --locals") for s in members[:1] if starts),
            dump_step(members[0], "--native"),
            sockets_step(members[0], members[0].pid),
        ),
        confidence=0.3,
    )


def _asleep(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """All sleep in the program, for longer than a pause between two steps, and nobody waits."""
    asleep = [s for s in left if s.activity.kind == "sleep"]
    stalled = case.progress.stalled_for_s or 0.0
    if not asleep or len(asleep) < len(case.subjects) or stalled < case.hang_after:
        return
    places = [
        f"{name_ranks(group)} {several(group[0].activity.text, group)} at {group[0].activity.at}"
        for group in alike(asleep, lambda s: (s.activity.text, s.activity.site))
    ]
    same = "; nothing differs between them" if len(places) == 1 and len(asleep) > 1 else ""
    yield Hit(
        subjects=(),
        explained=tuple(asleep),
        summary=(
            f"no rank waits for another, and none has got on {case.since(asleep[0])}: "
            f"{'; '.join(places[:4])}{same}. The program pauses, or looks again and again for "
            "something outside of the job"
        ),
        evidence=common_facts(case, asleep[:1]),
        steps=(dump_step(asleep[0], "--each --locals"),),
    )


def _for_others(case: Case) -> Iterator[Hit]:
    """Ranks in sends and receives that may wait for those that were not seen."""
    if not case.seats or not case.passing:
        return
    said = name_classes(case.waiting_classes)
    lacking = name_ranks(seat.rank for seat in case.seats)
    one = len(case.seats) == 1
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=f"{said}. {lacking} {'was' if one else 'were'} not seen, and may be whom they wait "
        f"for: {size_name(case.job)} is {case.job.world_size}; look on the other nodes",
        steps=trace_steps(case.passing[0]),
    )


def _away(case: Case, members: Sequence[Subject]) -> str:
    """That nodes stopped to answer when the job stood still already: these differ after all."""
    silent = case.unheard(members)
    if not silent:
        return ""
    nodes = {s.rank.node for s in silent}
    ago = duration(min(case.silent_s(s) or 0.0 for s in silent))
    verb = "has" if len(nodes) == 1 else "have"
    return (
        f". But {nodesets.fold(nodes)} with {name_ranks(silent)} {verb} not answered for {ago}, "
        "and did while the job stood still already: look there first"
    )


def _what_is_left(case: Case, members: Sequence[Subject]) -> str:
    """What may keep ranks that wait alike, and cannot be seen from outside."""
    kind = members[0].activity.kind
    more = ""
    if case.job.world_size is None:
        more = f"a rank beyond these {len(members)}, as world_size may say (it is not known here), "
    if over_a_file(members):
        return f"{more}the file that they seem to meet over (FileStore): another one, or an old one"
    if kind == "init":
        known = all(s.rank.process.told_size for s in members) or not case.job.world_size
        said = f"({'' if known else 'world_size, '}init_method, store), the network or the library"
        return f"{more}what they were told there {said}{left_over(members[0])}"
    if kind == "store":
        return f"{more}a key that nobody sets, or by another name, the network or the store"
    if case.picture is None and kind in _SAME_LINE:
        return "the network, the library, or a group, root or tensor that differs at that line"
    return "the network or the library"


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
UNKNOWN = Rule(
    cause="unknown",
    title="No cause could be told",
    seen="All ranks seen wait in the same call, or sleep in the program for the hang time; or the "
    "ranks left gave no stack.",
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
