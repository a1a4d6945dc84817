"""Ranks in collectives of several groups at successive lines: who is furthest back, and for whom.

Calls of different groups are no alternatives of one another: each waits for members of its own
group only. Whoever is furthest back in the program waits for somebody further on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.branches import branch, left_out
from hangtop_core.analysis.verdict.callers import conditions, loops, parted, parting, stack_of
from hangtop_core.analysis.verdict.conditional import conditions as any_conditions
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks, name_waiters, wait_text
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, several, who
from hangtop_core.analysis.verdict.uneven import unused
from hangtop_core.model.frames import is_library
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_MOST_WAYS = 6
"""Of more ways in which ranks wait this says nothing."""
READ = 0.75
"""Confidence where the line is read at which those blamed have turned back."""
_GROUP = re.compile(r"\bgroup\s*=\s*((?:[\w.]|\[[^\]]*\]|\([^()]*\))+)")
_ALL = re.compile(r"^None$|WORLD")
_NEAR = re.compile(
    r"(?:^|[^a-z])(?:tp|mp|sp|cp|ep)(?:$|[^a-z])|tensor|model|seq|context|expert", re.IGNORECASE
)
"""Groups that are mostly of neighbouring ranks, since these are on one node."""


def _told(case: Case) -> bool:
    """Whether something else tells why they are apart."""
    return bool(case.conditional or case.caught or case.uneven or case.left_early)


def out_of_step(case: Case) -> Hit | None:
    """The hit on members of a group that are most likely past a call in which others wait."""
    classes = [members for _, members in case.waiting_classes]
    if case.suspects or not 2 <= len(classes) <= _MOST_WAYS or case.by_recorders is not None:
        return None
    if any(some[0].activity.kind != "collective" for some in classes):
        return _unreduced(case, classes)
    groups = {id(some[0]): group_of(some[0]) for some in classes}
    if len(set(groups.values())) < min(len(classes), 3) or _told(case):
        return None
    stacks = {id(some[0]): stack_of(case.snapshot.stacks, some[0]) for some in classes}
    back, front = _ends(classes, stacks)
    if back is None or front is None or not groups[id(back[0])]:
        return None
    group = groups[id(back[0])]
    near = _neighbours(case, back, front) if _NEAR.search(group) else ()
    blamed = near or front
    if 2 * len(blamed) > len(case.waiters):
        return None
    # Of two classes either may be the odd one, unless what turns ranks back there is read.
    way = left_out(case, blamed, back) if len(classes) == 2 else ""
    if len(classes) == 2 and not (way and _whole(front[0])):
        return None
    rest = besides(front, blamed)
    others = [s for some in classes if some is not back for s in some]
    which = f"{name_ranks(blamed)}, if such groups are of neighbours" if near else ""
    which = which or f"{'it' if len(blamed) == 1 else 'one of them'} is {name_ranks(blamed)}"
    which += f" (else {name_ranks(rest)})" if near and rest else ""
    place = stacks[id(back[0])]
    return Hit(
        subjects=tuple(blamed),
        explained=case.waiters,
        summary=(
            f"{name_waiters(back)} {case.since(back[0])}".rstrip()
            + f", for members of `{group}` alone, and "
            f"{is_are(back, 'is', 'are')} furthest back: {name_ranks(others)} "
            f"{is_are(others, 'is', 'are')} further on in the program, in "
            f"{'a call of another group' if len(classes) == 2 else 'calls of other groups'}, "
            f"and {is_are(others, 'waits', 'wait')} for those behind. So a member of that group "
            f"most likely went on without this call: {which}"
            + (way or (f". Or {name_ranks(back)} is a round ahead of all others" * (len(back) < 2)))
        ),
        evidence=(
            fact("stacks", None, _lines(classes, stacks, place)),
            *common_facts(case, blamed),
        ),
        steps=(
            Advice(
                f"look for what lets a rank leave {back[0].activity.at} out: a condition, a "
                "parameter that needs no gradient, a branch of the model"
            ),
            Advice(
                "start the job by `hangtop run`: recorders tell who of that group has not issued it"
            ),
        ),
        confidence=READ if way else 0.55 if near else 0.45,
    )


def _unreduced(case: Case, classes: Sequence[Sequence[Subject]]) -> Hit | None:
    """The hit on few ranks past a backward in which the others wait, in a call of another group.

    DistributedDataParallel reduces in the group of all ranks, or in one that it was given.
    """
    back, front = classes[0], classes[-1]
    if len(classes) != 2 or back[0].activity.kind != "backward" or not _whole(front[0]):
        return None
    group, few = group_of(front[0]), 2 * len(front) < len(case.waiters)
    if front[0].activity.kind != "collective" or not group or _ALL.search(group) or not few:
        return None
    stacks = {id(some[0]): stack_of(case.snapshot.stacks, some[0]) for some in classes}
    if _told(case) or not _further(stacks[id(back[0])], stacks[id(front[0])]):
        return None
    waits = several(f"waits {wait_text(front[0].activity)}", front)
    return Hit(
        subjects=tuple(front),
        explained=case.waiters,
        summary=(
            f"{name_waiters(back)} {case.since(back[0])}".rstrip()
            + f", and {who(front)} {is_are(front, 'is', 'are')} past that: "
            f"{is_are(front, 'it', 'they')} {waits}, for members of `{group}`. So "
            f"{is_are(front, 'its', 'their')} own backward most likely reduced none, or not all, "
            f"of the gradients that {name_ranks(back)} "
            f"{is_are(back, 'waits', 'wait')} for, as where a part of the model is not used in a "
            "step"
        ),
        evidence=(
            fact("stacks", None, _lines(classes, stacks, stacks[id(back[0])])),
            *common_facts(case, front),
        ),
        steps=(
            *unused(case, front),
            Advice(
                f"look for a condition in the model, or in its loss, that lets {name_ranks(front)} "
                "leave a part of it out"
            ),
        ),
        confidence=READ,
    )


def _ends(
    classes: Sequence[Sequence[Subject]], stacks: Mapping[int, Sequence[Frame]]
) -> tuple[Sequence[Subject] | None, Sequence[Subject] | None]:
    """Who of all classes is furthest back in the program, and who furthest on; None: unknown."""
    further = [
        [one is other or _further(stacks[id(one[0])], stacks[id(other[0])]) for other in classes]
        for one in classes
    ]
    back = next((some for some, row in zip(classes, further, strict=True) if all(row)), None)
    columns = zip(*further, strict=True)
    front = next((some for some, one in zip(classes, columns, strict=True) if all(one)), None)
    return back, front


def group_of(subject: Subject) -> str:
    """What the line of a collective names as its group; empty where it names none."""
    site = subject.activity.site
    found = _GROUP.search(site.source or "") if site is not None else None
    return found[1] if found else ""


def crossed(case: Case) -> Hit | None:
    """The hit on two halves of which each waits in a group for members that are in the other half.

    Where all wait, nobody of either half waits for its own. By two branches, or by two functions
    called at one line, they came to calls of two groups: neither is behind the other.
    """
    classes = [members for _, members in case.waiting_classes]
    if case.suspects or len(classes) != 2 or case.by_recorders is not None:
        return None
    one, other = classes
    groups = [group_of(one[0]), group_of(other[0])]
    if _told(case) or len(one) != len(other) or not all(groups) or groups[0] == groups[1]:
        return None
    if any(some[0].activity.kind != "collective" for some in classes) or len(one) < 2:
        return None
    stacks = [stack_of(case.snapshot.stacks, some[0]) for some in classes]
    if not _alternatives(*stacks):
        return None
    said = "; ".join(
        f"{name_waiters(some)} for members of `{group}`"
        for some, group in zip(classes, groups, strict=True)
    )
    return Hit(
        subjects=(),
        explained=case.waiters,
        summary=(
            "two halves wait for one another in two groups "
            f"{case.lasting(case.progress.since)}".rstrip()
            + f": {said}. Who is missing in either is in the other: ranks came to these groups in "
            f"another order, or some took another branch{branch(case, other, one)}"
        ),
        evidence=common_facts(case, [one[0], other[0]]),
        steps=(
            Advice("issue the collectives of the groups in one order on all ranks"),
            Advice(
                f"compare what leads {name_ranks(one)} and {name_ranks(other)} to these two lines"
            ),
        ),
    )


def _alternatives(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Whether two stacks part in two branches of one condition, or at one line of the program."""
    depth = parting(one, other)
    if depth is None:
        pairs = zip(reversed(one), reversed(other), strict=False)
        met = None
        for left, right in pairs:
            if (left.file, left.name) != (right.file, right.name):
                return met is not None and not is_library(met)
            met = left
        return False
    here, there = one[-1 - depth], other[-1 - depth]
    if is_library(here):
        return False
    mine = [block for block in conditions(here) if block not in conditions(there)]
    theirs = [block for block in conditions(there) if block not in conditions(here)]
    if not mine or not theirs:
        return False
    (first, text), (second, more) = sorted((mine[0], theirs[0]))
    # `if a: ... elif b: ... else: ...`: of the last one the `elif` is told.
    return first == second or ("elif " in more and text.startswith(("if ", "elif ")))


def _whole(subject: Subject) -> bool:
    """Whether the line of a call is all of it, so that it would name a group."""
    source = (subject.activity.site.source if subject.activity.site is not None else None) or ""
    return "(" in source and source.count("(") == source.count(")")


def in_own_branch(case: Case, classes: Sequence[Sequence[Subject]]) -> tuple[Subject, ...]:
    """Of several classes of ranks that are elsewhere the one that alone is under a condition.

    Only where lines name different groups: then others may be elsewhere since they wait for it.
    """
    own = set(any_conditions(case, [some[0] for some in classes], any_at_all=True))
    found = [some for some in classes if id(some[0]) in own]
    groups = {group_of(some[0]) for some in classes}
    return tuple(found[0]) if len(found) == 1 and len(groups) == len(classes) > 1 else ()


def _further(one: Sequence[Frame], other: Sequence[Frame]) -> bool | None:
    """Whether the second stack is further down in the same loop; None where that is not so."""
    met = parted(one, other)
    if met is None:
        return None
    here, there = met
    if is_library(here) or here.within is None or there.within is None:
        return None
    same = loops(here) == loops(there) and conditions(here) == conditions(there)
    return here.line < there.line if same else None


def _neighbours(
    case: Case, back: Sequence[Subject], front: Sequence[Subject]
) -> tuple[Subject, ...]:
    """Those in front in the smallest blocks of ranks that have some of both."""
    world = case.job.world_size or len(case.subjects)
    for wide in (one for one in range(2, world) if world % one == 0):
        blocks = {s.number // wide for s in back}
        found = tuple(s for s in front if s.number // wide in blocks)
        if found:
            return found
    return ()


def _lines(
    classes: Sequence[Sequence[Subject]],
    stacks: dict[int, tuple[Frame, ...]],
    back: Sequence[Frame],
) -> str:
    """Where ranks are in the function in which they part from those furthest back."""
    said, here = [], None
    for some in classes:
        mine = stacks[id(some[0])]
        depth = parting(back, mine)
        if depth is not None:
            here = here or back[-1 - depth]
            said.append(f"{name_ranks(some)} at line {mine[-1 - depth].line}")
    at = f"{here.name} of {here.short or here.file}" if here is not None else "the program"
    own = f"; those furthest back at line {here.line}" if here is not None else ""
    return f"in {at}: {', '.join(said)}{own}"


def _found(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    hit = out_of_step(case)
    if hit is not None:
        yield hit


def _crossed(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    hit = crossed(case)
    if hit is not None:
        yield hit


CROSSED = Rule(
    cause="group-order-inversion",
    title="Two halves wait for one another in collectives of two groups",
    seen="All wait in collectives, one half in a line that names one group (`group=...`), the "
    "other half in a line that names another. They part in two branches of one condition, or in "
    "two functions that one line calls. Nobody is blamed.",
    excluded="Somebody is outside communication. The recorders of all were read. One half is "
    "further on than the other, has left a loop, or by an exception, or is under a condition on "
    "the rank. Where one half is smaller: `mismatched-collective`, which blames it.",
    confidence=0.6,
    next_steps=("Issue the collectives of the groups in one order on all ranks",),
    find=_crossed,
    needs=(More("recorder", "in which order it has issued the operations of its groups"),),
)
OUT_OF_STEP = Rule(
    cause="missing-collective",
    title="A member of a group went on without a call in which others wait",
    seen="All wait in collectives at three or more successive lines of one loop, whose lines name "
    "different groups (`group=...`). Who is furthest back waits for a member of its group that is "
    "further on; those furthest on are blamed, and of these the neighbours of who waits where the "
    "group is one of tensor, sequence, context or expert parallelism (confidence 0.55, else 0.45). "
    "Or at two such lines, and those behind are past, or under, what turns ranks back before that "
    "(confidence 0.75). Or most wait in backward, and few further on in that loop in a call of a "
    "group of its own (confidence 0.75).",
    excluded="Somebody is outside communication. The recorders of all were read. Ranks are in "
    "branches of their own, or have left a loop.",
    confidence=0.55,
    next_steps=("Look for what lets a rank leave that call out",),
    find=_found,
    needs=(More("recorder", "which operation of that group it has not issued"),),
)
