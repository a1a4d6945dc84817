"""Ranks that are through with their data while others still train: the loops are of unequal length.

DistributedDataParallel and FSDP reduce by themselves in every step. A rank that has left the loop
waits in a later operation of the program, and the others in the reduction that it does not join.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.callers import (
    PAST,
    block_at,
    conditions,
    guards,
    in_turn,
    loops,
    parting,
    rank_conditions,
    stack_of,
)
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.loopkinds import (
    counted,
    epoch_loop,
    names_data,
    over_batches,
    over_parts,
    over_steps,
)
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import MORE_OR_LESS
from hangtop_core.analysis.verdict.recorderfacts import AGREED, apart, flight_facts, held
from hangtop_core.analysis.verdict.sentences import is_are, several, who
from hangtop_core.analysis.verdict.waitclasses import MAX_CLASSES
from hangtop_core.model.frames import is_library, place, plain_name
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame
    from hangtop_core.text.commands import Step

_WRAPPERS = (
    "/torch/nn/parallel/distributed.py",
    "/torch/distributed/fsdp/",
    "/torch/distributed/_composable/",
)
"""Code that communicates by itself, wherever the program calls the model."""
_TOGETHER = Advice("let all ranks decide together when that loop ends: all_reduce what ends it")
_LEAVES = re.compile(r":\s*(?:break\b|return\b|$)")


def uneven(case: Case) -> Iterator[Hit]:
    """Ranks that are out of the loop over the data in which others are, or the few still in it."""
    if case.suspects or len(case.waiting_classes) < 2 or case.caught:
        return
    # Who is in a branch of its own is not there because of its data.
    branched = {id(s) for group, _ in case.conditional for s in group}
    others = [s for s in case.waiters if id(s) not in branched]
    training = [s for s in others if _reduces(case, s)] or _in_data(case, branched)
    if not training:
        return
    past = [s for s in besides(others, training) if s.activity.kind == "collective"]
    met = [(s, _parting(_stack(case, training[0]), _stack(case, s))) for s in past]
    ahead = {id(s): where for s, where in met if where is not None}
    for group in alike((s for s in past if id(s) in ahead), lambda s: s.activity.site):
        first = group[0]
        here, there, loop, sure, *_ = ahead[id(first)]
        step = training[0].activity
        # Most are right: a few that are still in it have got more than the others.
        few = len(group) <= len(training)
        odd = group if few else training
        ways = ("got fewer batches", "left that loop early")
        got = ", or ".join(ways[::-1] if ahead[id(first)].counted else ways)
        got = got if few else "got more batches, or reduces more"
        got = got if sure else f"{got}, or went on without what the others wait in"
        numbers = [s.number for s in odd]
        one = apart(case, numbers) if sure else None
        named = [name_ranks(some) if some is not odd else who(some) for some in (group, training)]
        yield Hit(
            subjects=tuple(odd),
            summary=(
                f"{named[0]} {is_are(group, 'is', 'are')} {loop} and "
                f"{is_are(group, 'waits', 'wait')} in {held(case, first)} at "
                f"{first.activity.at} {case.since(first)}, while {named[1]} "
                f"{is_are(training, 'is', 'are')} still in it and "
                f"{several(step.text.rstrip(','), training)} at {step.at}: "
                f"{name_ranks(odd)} {got}"
            ),
            evidence=(
                fact("stacks", first.number, _where(here, there, training, group)),
                *flight_facts(one, numbers),
                *common_facts(case, odd),
            ),
            steps=(
                *((_TOGETHER,) if few and ahead[id(first)].counted else ()),
                Advice(
                    "give every rank the same number of batches: DistributedSampler, drop_last=True"
                ),
                Advice(
                    "or with model.join(): (torch.distributed.algorithms.join), which shadows "
                    "the rest"
                ),
                Advice(f"compare len(dataloader) on {name_ranks(odd)} and on the others"),
                *(() if sure else unused(case, odd)),
            ),
            confidence=AGREED if one is not None else None if sure else 0.6,
        )


def left_early(case: Case) -> Iterator[Hit]:
    """Ranks that are out of a loop of any other kind in which others wait, or the few still in it.

    A loop that ends by what each rank finds for itself, as `while not done:`, is left alone.
    """
    classes = [members for _, members in case.waiting_classes]
    told = bool(case.suspects or case.caught or case.uneven or case.conditional)
    if told or case.by_recorders is not None or len(classes) != 2:
        return
    if any(some[0].activity.kind != "collective" for some in classes):
        return
    for inside, past in (classes, classes[::-1]):
        met = _parting(_stack(case, inside[0]), _stack(case, past[0]))
        if met is None or not met.sure or not met.known:
            continue
        few = len(past) <= len(inside)
        odd = past if few else inside
        named = [name_ranks(some) if some is not odd else who(some) for some in (past, inside)]
        one, other = past[0].activity, inside[0].activity
        yield Hit(
            subjects=tuple(odd),
            summary=(
                f"{named[0]} {is_are(past, 'is', 'are')} {met.loop} and "
                f"{several(one.text.rstrip(','), past)} at {one.at} {case.since(past[0])}, while "
                f"{named[1]} {is_are(inside, 'is', 'are')} still in it and "
                f"{several(other.text.rstrip(','), inside)} at {other.at}: what ends that loop "
                f"differs between ranks{met.ways}"
            ),
            evidence=common_facts(case, odd),
            steps=(_TOGETHER, Advice(f"compare that on {name_ranks(odd)} and on the others")),
        )
        return


def _where(here: Frame, there: Frame, training: Sequence[Subject], past: Sequence[Subject]) -> str:
    """Where ranks are in the function in which they part."""
    said = f"all are in {here.name} of {here.short or here.file}"
    if here.line == there.line:
        source = here.source or there.source or ""
        return (
            f"{said}, at line {here.line}, `{source.strip()}`: {name_ranks(training)} in the call "
            f"of an argument, which is over before that begins which {name_ranks(past)} "
            f"{is_are(past, 'is', 'are')} in"
        )
    lines = f"{name_ranks(training)} at line {here.line}, {name_ranks(past)} at line {there.line}"
    return f"{said}: {lines}"


def _in_data(case: Case, branched: Container[int]) -> list[Subject]:
    """Those who wait in a collective that the program calls itself, in a loop over data.

    Only where another class of ranks has left that loop; none where nobody knows of loops.
    """
    classes = [some for _, some in case.waiting_classes[:MAX_CLASSES]]
    classes = [
        some
        for some in classes
        if some[0].activity.kind == "collective" and id(some[0]) not in branched
    ]
    for past in classes:
        met = [_parting(_stack(case, some[0]), _stack(case, past[0])) for some in classes]
        inside = [some for some, one in zip(classes, met, strict=True) if one and one.over_data]
        if inside:
            return [s for some in inside for s in some]
    return []


def _stack(case: Case, subject: Subject) -> tuple[Frame, ...]:
    return stack_of(case.snapshot.stacks, subject)


def left_loop(case: Case, one: Subject, other: Subject) -> str:
    """`through with the loop at ...` in which the other one is; empty where nobody knows."""
    met = _parting(_stack(case, other), _stack(case, one))
    return met.loop + met.ways if met is not None and met.sure and met.known else ""


def _reduces(case: Case, subject: Subject) -> bool:
    """Whether it waits in what a parallel wrapper reduces by itself, in no call of its own."""
    if subject.activity.kind == "backward":
        return True
    run = list(takewhile(is_library, _stack(case, subject)))
    if any(plain_name(frame.name) == "__init__" for frame in run):
        return False  # the wrapper is being made
    return any(part in "/" + frame.file for frame in run for part in _WRAPPERS)


class _Parting(NamedTuple):
    here: Frame
    """Where those who train are in the function in which two stacks part."""
    there: Frame
    """Where the other one is in it, further down."""
    loop: str
    """`through with the loop at ...`, the one that it has left."""
    sure: bool
    """Whether that loop can only be the one over the data."""
    known: bool = True
    """Whether it was read where loops are."""
    over_data: bool = False
    """Whether the line of that loop says that it goes over data."""
    ways: str = ""
    """` (it is left early at `if done: break` (line 7))`, where that stands above."""
    counted: bool = False
    """Whether that loop counts to a number: it is left early, or what it goes on with differs."""


def unused(case: Case, blamed: Sequence[Subject]) -> tuple[Step, ...]:
    """The step for ranks that are past a backward in which the others wait."""
    backward = [s for s in case.waiters if s.activity.kind == "backward"]
    if not backward or any(s.activity.kind == "backward" for s in blamed):
        return ()
    return (
        Advice(
            f"look for parameters that {name_ranks(blamed)} did not use in that step: without "
            "find_unused_parameters=True DistributedDataParallel does not reduce what they share "
            "a bucket with"
        ),
    )


def _parting(training: Sequence[Frame], past: Sequence[Frame]) -> _Parting | None:
    """Where the second stack has left a loop that the first one is in.

    None where they part in two functions, the second one is not further down, or is in the loop,
    too. Where the program's file was not read, further down has to do.
    """
    depth = parting(training, past)
    depth = in_turn(training, past) if depth is None else depth
    if depth is None:
        return None
    here, there = training[-1 - depth], past[-1 - depth]
    if there.line < here.line or is_library(here):
        return None
    known, around = loops(here), loops(there)
    further = None
    if here.line != there.line:
        further = _Parting(here, there, f"further on than {place(here)}", True, known=False)
    if known is None or around is None:
        return further
    left = [(here, block) for block in known if block not in around]
    for frame in reversed(training[: -1 - depth]):
        inner = loops(frame)
        if inner is None and not is_library(frame):
            return further
        left += [(frame, block) for block in inner or ()]
    outer = reversed(training[len(training) - depth :])
    shared = [block for frame in outer for block in loops(frame) or ()]
    shared += [block for block in known if block in around]
    # In a loop over batches that both are in, another one is over the parts of one.
    if any(map(over_batches, shared)):
        return None
    left = [one for one in left if not over_parts(one[1], shared)]
    over_data = next((one for one in left if names_data(one[1])), None)
    # A loop of a callee is entered anew in every round of the one that both are in, and may be left
    # by return: of attempts, say.
    epoch = epoch_loop(training[: len(training) - depth], past[: -1 - depth], shared, left)
    others = (one for one in left if one[0] is here or not shared)
    one = over_data or epoch or next(others, None)
    if one is None or _never_in(one, here, there):
        return None
    text = f"through with the loop at {block_at(*one)}"
    data = over_data is not None and not one[1][1].startswith("while")
    # A loop over data in one over steps may be over what is to be one batch.
    in_step = any(map(over_steps, shared[-1:])) and one is not epoch
    sure = not in_step and (not shared or over_data is not None or epoch is not None)
    to_number = counted(one[1])
    return _Parting(here, there, text, sure, True, data, _ways_out(*one), to_number)


def _never_in(loop: tuple[Frame, Block], here: Frame, there: Frame) -> bool:
    """Whether a rank has not come to a loop: it is in the other branch, or another rank's part."""
    around = there.within or ()
    mine = [b for b in conditions(here) if b not in around and (b < loop[1] or loop[0] is not here)]
    other = {(line, text.removeprefix("else: ")) for line, text in around}
    return any(
        b in rank_conditions(here) or (b[0], b[1].removeprefix("else: ")) in other for b in mine
    )


def _ways_out(frame: Frame, loop: Block) -> str:
    """Where a loop is left early, above the line at which a frame is in it."""
    found = [b for b in guards(frame) if b > loop and _LEAVES.search(b[1])]
    told = (f"`{text.removeprefix(PAST)}` (line {line})" for line, text in found[:2])
    # Of a longer block it is not known how it leaves.
    how = "perhaps " if any(text.endswith(":") for _, text in found) else ""
    return f" ({how}it is left early at {' and '.join(told)})" if found else ""


UNEVEN = Rule(
    cause="uneven-inputs",
    title="A rank has run out of data before the others",
    seen="Some wait in what DistributedDataParallel or FSDP reduces by itself in every step, or in "
    "a collective in a `for` whose line names what it goes over as data; this rank waits in an "
    "operation further down in the same function, and outside the loop that they are in (as the "
    "program's file has it, where that can be read), or in a call of which theirs is an argument. "
    "Where most have left it, those that are still "
    "in it are to blame. Where both are in a loop around that one, and its line does not name what "
    "it goes over as data, nor is it the loop of an epoch, with less confidence (0.60).",
    excluded="Somebody is outside communication, or has left by an exception. The loop goes over "
    "parts of one batch, as one in a loop over batches that all are in does, or is in a callee and "
    "entered anew in every round. This rank is under a condition on the rank.",
    confidence=0.8,
    next_steps=("Compare len(dataloader) between ranks", "drop_last=True, or Join"),
    find=lambda case, left: case.uneven,
    needs=MORE_OR_LESS,
)
LEFT = Rule(
    cause="missing-collective",
    title="A rank has left a loop in which others still are",
    seen="All wait in collectives at two places of one function or its callees: some in a loop, as "
    "the program's file has it, and some below it. The fewer are blamed. Told is at which `break` "
    "or `return` above where the others are that loop can be left.",
    excluded="`uneven-inputs`. A loop of a callee is entered anew in each round of one that all "
    "are in. Those below it are in the other branch of a condition that the loop is under.",
    confidence=0.82,
    next_steps=("Let all ranks decide together when that loop ends",),
    find=lambda case, left: case.left_early,
    needs=MORE_OR_LESS,
)
