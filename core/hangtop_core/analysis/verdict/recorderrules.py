"""Causes that flight recorders show where all ranks wait for one another, and stacks tell little.

The recorders of all ranks are judged together by `analysis.flight`, as dumps are; what it concludes
first is the verdict here. Where a rank is outside of communication its stack says more, and the
other rules have spoken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight import patterns
from hangtop_core.analysis.flight.circles import alone, skip_text, skipped
from hangtop_core.analysis.flight.evidence import named
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.branches import branch, turned_back
from hangtop_core.analysis.verdict.callers import (
    Block,
    block_at,
    conditions,
    guards,
    loops,
    parted,
    parting,
    rank_conditions,
    stack_of,
    worded,
)
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.meeting import nettest
from hangtop_core.analysis.verdict.naming import name_classes, name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.recorderfacts import AGREED
from hangtop_core.analysis.verdict.sentences import is_are, several
from hangtop_core.analysis.verdict.steps import on, sockets_step
from hangtop_core.analysis.verdict.uneven import unused
from hangtop_core.model.frames import is_library
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model.snapshot import Frame
    from hangtop_core.text.commands import Step

_EXCLUDED = "A rank is outside of communication, or the recorder of a rank could not be read."
_READ = "every number, operation and size that ranks have recorded was read"
_DRIVERS = (More("kernel log", "whether a driver reports an error of a GPU"),)
_PAST = (
    "A rank is outside of communication. Stacks show that one is past the line at which the others "
    "wait for it, or has left their loop: `missing-collective`."
)


def _concluded(pattern: Pattern, case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    one = case.by_recorders
    if one is None:
        return
    sure = bool(case.caught) or any(hit.confidence in (None, AGREED) for hit in case.uneven)
    if sure and one.cause != patterns.SKIPPED.cause:
        return
    if one.cause == patterns.INVERSION.cause and (told := _by_stacks(case, one)) is not None:
        if pattern is told[0]:
            yield told[1]
        return
    if one.cause != pattern.cause:
        return
    circles = [one, *_other_circles(case, pattern, one)]
    blamed = {culprit.rank for circle in circles for culprit in circle.culprits}
    found = tuple(s for s in case.waiters if s.number in blamed)
    others = [s for s in case.waiters if s.number not in blamed]
    alone = found and pattern in (patterns.SKIPPED, patterns.ALONE)
    transport = pattern is patterns.TRANSPORT and bool(case.waiters)
    yield Hit(
        subjects=found,
        explained=case.waiters,
        summary=one.summary
        + "".join(f". {other.summary[:1].upper()}{other.summary[1:]}" for other in circles[1:])
        + (branch(case, found, others) if alone else ""),
        evidence=tuple(fact for circle in circles for fact in circle.evidence),
        steps=_moved_by(case)
        if transport
        else (*map(Advice, pattern.next_steps), *unused(case, found)),
        # That a loop is over says more: it is why an operation was left out.
        confidence=min(one.confidence, 0.75) if sure else one.confidence,
    )


def _other_circles(case: Case, pattern: Pattern, one: Verdict) -> list[Verdict]:
    """Other ranks that wait for one another in a circle, and have nothing to do with the first."""
    if pattern not in (patterns.P2P_CIRCLE, patterns.INVERSION) or case.picture is None:
        return []
    told = case.picture.diagnosis.verdicts
    return [other for other in told if other is not one and other.cause == one.cause]


def _moved_by(case: Case) -> tuple[Step, ...]:
    """Look at what moves the bytes of ranks that have all joined: sockets, kernel, GPUs."""
    first = case.waiters[0]
    find = ("grep", "-i", "-e", "xid", "-e", "mlx", "-e", "link is", "-e", "timeout")
    drivers = (Sign.KERNEL_LOG, Sign.PIPE, *find, Sign.PIPE, "tail", "-n", "20")
    return (
        sockets_step(first, first.pid, "see what stays in its connections"),
        *((nettest(case),) if len(case.job.nodes) > 1 else ()),
        on(first, *drivers, why="see what drivers say of network cards, links and GPUs"),
        *((on(case.on_gpus[0], "nvidia-smi"),) if case.on_gpus else ()),
    )


def _by_stacks(case: Case, one: Verdict) -> tuple[Pattern, Hit] | None:
    """What stacks tell of ranks in a circle of groups: who left something out, and who did not.

    Recorders of running ranks have no call sites, so that to them a step left out looks like one
    that is put off. Who is in no branch of its own has passed the line where the others wait.
    """
    seen = case.picture
    circles = [end for end in seen.waits.ends if len(end.nodes) > 1] if seen is not None else []
    if seen is None or len(circles) != 1:
        return None
    around = one.summary.partition(". ")[0]
    operations = [seen.waits.operations[node] for node in circles[0].nodes if node.kind != "rank"]
    if (left := _left_loop(case, operations)) is not None:
        text = f"{left[1]}. {around[0].upper()}{around[1:]}"
        others = besides(case.waiters, left[0])
        text += turned_back(case, left[0], others)
        return patterns.SKIPPED, _hit(case, one, left[0], text)
    skip = skipped(seen.waits, circles[0]) or alone(seen.waits, circles[0])
    if skip is None or skip.past is not None:
        return None
    blamed = [s for s in case.waiters if s.number in skip.ranks]
    waiting = {rank for operation in skip.lacking for rank in operation.entries}
    others = [s for s in case.waiters if s.number in waiting and s.number not in skip.ranks]
    parted = [_parted(case, s, others[0]) for s in blamed] if others else [None]
    known = [both for both in parted if both is not None]
    branches = [_own_branch(*both) for both in known]
    if len(known) < len(parted) or any(branches) != all(branches):
        return None
    first = branches[0]
    # Without a majority, what ranks did before may deceive: the program has to say the same.
    tied = {culprit.rank for culprit in one.culprits} != set(skip.ranks)
    if not first:
        further = all(here.line > there.line for here, there in known)
        text = skip_text(skip, around)
        if not skip.usual:
            here, there = known[0]
            if any(block[0] > there.line for block in guards(here)):
                return None  # there the others may have turned back in the round before
            text = _past(here, there, blamed, others) + f", and {text}"
        why = branch(case, blamed, others) if further else turned_back(case, blamed, others)
        hit = _hit(case, one, blamed, text + why)
        return (patterns.SKIPPED, hit) if further or (skip.usual and not tied) else None
    if not skip.usual:
        return None
    if tied and any(block[1].startswith("else") for way in branches for block in way):
        return None
    line, condition = first[0]
    text = (
        f"{around}. {name_ranks(blamed).capitalize()} {is_are(blamed, 'is', 'are')} in another "
        f"branch than the others, {worded(condition)} (line {line}), where {skip.what} "
        f"comes later, or never"
    )
    return patterns.INVERSION, _hit(case, one, blamed, text, patterns.INVERSION)


def _past(here: Frame, there: Frame, blamed: Sequence[Subject], others: Sequence[Subject]) -> str:
    """`rank 3 is further on than ranks 0-2, in step at line 9 and not 7`."""
    return (
        f"{name_ranks(blamed)} {is_are(blamed, 'is', 'are')} further on than {name_ranks(others)}, "
        f"in {here.name} of {here.short or here.file} at line {here.line} and not {there.line}"
    )


def _hit(
    case: Case,
    one: Verdict,
    blamed: Sequence[Subject],
    text: str,
    pattern: Pattern = patterns.SKIPPED,
) -> Hit:
    return Hit(
        subjects=tuple(blamed),
        explained=case.waiters,
        summary=text,
        evidence=(*one.evidence, *common_facts(case, blamed)),
        steps=(*map(Advice, pattern.next_steps), *unused(case, blamed)),
        confidence=0.85,
    )


def _left_loop(
    case: Case, operations: Sequence[Operation]
) -> tuple[tuple[Subject, ...], str] | None:
    """Ranks that have left a loop in which others wait for them."""
    by_number = {s.number: s for s in case.waiters}
    found: dict[int, str] = {}
    for operation in operations:
        others = [by_number[rank] for rank in operation.entries if rank in by_number]
        waits = f"{name_ranks(others)} {is_are(others, 'waits', 'wait')} in {named(operation)}"
        for rank in operation.missing if others else ():
            loop = _loop_left(case, by_number[rank], others[0]) if rank in by_number else None
            if loop is not None:
                found.setdefault(rank, f"through with the loop at {loop}, in which {waits}")
    ranks = tuple(by_number[rank] for rank in sorted(found))
    if not ranks or 2 * len(ranks) > len(case.waiters):
        return None
    return ranks, f"{name_ranks(ranks)} {is_are(ranks, 'is', 'are')} {found[ranks[0].number]}"


def _loop_left(case: Case, one: Subject, other: Subject) -> str | None:
    mine, theirs = (stack_of(case.snapshot.stacks, s) for s in (one, other))
    depth = parting(mine, theirs)
    if depth is None or mine[-1 - depth].line < theirs[-1 - depth].line:
        return None
    around = loops(mine[-1 - depth])
    known = [(frame, loops(frame)) for frame in reversed(theirs[: len(theirs) - depth])]
    known = [(frame, blocks) for frame, blocks in known if not is_library(frame)]
    if around is None or any(blocks is None for _, blocks in known):
        return None
    left = [(frame, block) for frame, blocks in known for block in blocks or ()]
    left = [
        (frame, block) for frame, block in left if frame is not known[0][0] or block not in around
    ]
    return block_at(*left[0]) if left else None


def _parted(case: Case, one: Subject, other: Subject) -> tuple[Frame, Frame] | None:
    """Where two ranks are in the function in which they part; None where the file was not read."""
    mine, theirs = (stack_of(case.snapshot.stacks, s) for s in (one, other))
    met = parted(mine, theirs)
    return None if met is None or None in (met[0].within, met[1].within) else met


def _own_branch(here: Frame, there: Frame) -> tuple[Block, ...]:
    """The conditions around one frame that are not around the other.

    Who is further up in the same loop may be in the next round, and a condition there may be one
    that the other has met, too: unless that is in its `else`, is past it, or it asks for the rank.
    """
    found = tuple(block for block in conditions(here) if block not in conditions(there))
    if here.line > there.line or not loops(here) or loops(here) != loops(there):
        return found
    parted = {line for line, text in there.within or () if text.startswith(("else", "past"))}
    own = rank_conditions(here)
    return tuple(block for block in found if block[0] in parted or block in own)


def _rule(pattern: Pattern) -> Rule:
    circle = pattern is patterns.INVERSION
    return Rule(
        cause=pattern.cause,
        title=pattern.title,
        seen=f"The recorders of {'those' if circle else 'all'} ranks were read. {pattern.seen}",
        excluded=_PAST if circle else _EXCLUDED,
        confidence=pattern.confidence,
        next_steps=pattern.next_steps,
        find=partial(_concluded, pattern),
        needs=_DRIVERS if pattern is patterns.TRANSPORT else (),
        complete="" if pattern is patterns.TRANSPORT else _READ,
    )


def _subset(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    making = [s for s in case.waiters if s.activity.kind == "new-group"]
    others = [s for s in case.waiters if s.activity.kind != "new-group"]
    if case.suspects or not making:
        return
    if not others:
        yield from _made_apart(case)
        return
    first = others[0].activity
    yield Hit(
        subjects=tuple(others),
        summary=(
            f"new_group was called by {len(making)} of {len(case.subjects)} ranks "
            f"({name_ranks(making)}) and waits for all; {name_ranks(others)} did not call it, or "
            f"made groups in another order, and {several(first.text, others)} at {first.at}. Every "
            "rank has to call it, also those that are not in the group"
        ),
        evidence=common_facts(case, others),
        steps=(
            Advice(
                f"look at {making[0].activity.at} for a condition on the rank: call new_group "
                f"on all ranks, in the same order"
            ),
        ),
    )


def _made_apart(case: Case) -> Iterator[Hit]:
    """All make groups, and not the same: their order differs, or some have left one out.

    Those of the groups of a rank that is not there wait for it in vain, and others go on.
    """
    classes = case.waiting_classes
    if len(classes) < 2:
        return
    tied = len(classes[0][1]) == len(classes[1][1])
    said = name_classes(classes)
    odd = [s for _, some in classes[1:] for s in some]
    if case.seats:
        yield Hit(
            subjects=(),
            summary=f"ranks make groups at different places: {said}. They wait for a rank that was "
            "not seen, or do not make the same groups in the same order",
            steps=(
                Advice("see whether the ranks that were not seen run"),
                Advice("read the ends of their logs"),
            ),
            confidence=0.4,
        )
        return
    yield Hit(
        subjects=tuple(odd),
        summary=(
            f"{name_ranks(odd)} {is_are(odd, 'makes', 'make')} another group than "
            f"{'the other half' if tied else 'most'}: {said}. Every rank has to make the same "
            "groups in the same order, also those that it is not in"
        ),
        evidence=common_facts(case, odd),
        steps=(Advice("call new_group on all ranks, in the same order"),),
        confidence=0.45 if tied else 0.8,
    )


SUBSET = Rule(
    cause="subset-new-group",
    title="A process group is made by some ranks only",
    seen="Some ranks wait in new_group (split_group, init_device_mesh), all others in another "
    "operation; or all do, called from different lines.",
    excluded="A rank is outside of communication: it may be on its way to new_group. Nobody is "
    "named where all are in new_group and a rank of the world was not seen: they may wait for it.",
    confidence=0.85,
    next_steps=("Call new_group on all ranks, in the same order",),
    find=_subset,
    complete="making a group is in no recorder: who is at it, all stacks show",
)
RULES = tuple(
    map(
        _rule,
        (
            patterns.INVERSION,
            patterns.P2P_CIRCLE,
            patterns.P2P_CHAIN,
            patterns.SKIPPED,
            patterns.ALONE,
            patterns.SIZES,
            patterns.TYPES,
            patterns.TRANSPORT,
            patterns.LET_THROUGH,
        ),
    )
)
