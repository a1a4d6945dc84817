"""Ranks that are through with their data while others still train: the loops are of unequal length.

DistributedDataParallel and FSDP reduce by themselves in every step. A rank that has left the loop
waits in a later operation of the program, and the others in the reduction that it does not join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import is_library, place
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.case import name_ranks
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    is_are,
    who,
)
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Frame

_WRAPPERS = (
    "/torch/nn/parallel/distributed.py",
    "/torch/distributed/fsdp/",
    "/torch/distributed/_composable/",
)
"""Code that communicates by itself, wherever the program calls the model."""


def _uneven(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.suspects or len(case.waiting_classes) < 2:
        return
    training = [s for s in case.waiters if _reduces(case, s)]
    if not training:
        return
    past = [s for s in case.waiters if s.activity.kind == "collective" and not _reduces(case, s)]
    met = [(s, _parting(_stack(case, training[0]), _stack(case, s))) for s in past]
    ahead = {id(s): frames for s, frames in met if frames is not None}
    for group in alike((s for s in past if id(s) in ahead), lambda s: s.activity.site):
        first = group[0]
        here, there = ahead[id(first)]
        step = training[0].activity
        yield Hit(
            subjects=group,
            summary=clean(
                f"{who(group)} {is_are(group, 'is', 'are')} through with the loop at "
                f"{place(here)} and {is_are(group, 'waits', 'wait')} in {first.activity.op} at "
                f"{place(there)} {case.since(first)}, while {name_ranks(training)} still "
                f"{is_are(training, 'trains', 'train')} ({step.at}): "
                f"{is_are(group, 'it', 'they')} got fewer batches",
                800,
            ),
            evidence=(
                fact(
                    "stacks",
                    first.number,
                    f"both are in {here.name} of {here.short or here.file}: those that train at "
                    f"line {here.line}, this one at line {there.line}",
                ),
                *common_facts(case, group),
            ),
            steps=(
                "give every rank the same number of batches: DistributedSampler, drop_last=True",
                "or with model.join(): (torch.distributed.algorithms.join), which shadows the rest",
                f"compare len(dataloader) on {name_ranks(group)} and on the others",
            ),
        )


def _stack(case: Case, subject: Subject) -> tuple[Frame, ...]:
    sample = subject.rank.sample
    if sample is None or not sample.threads:
        return ()
    return case.snapshot.stacks.get(sample.threads[0].stack, ())


def _reduces(case: Case, subject: Subject) -> bool:
    """Whether it waits in what a parallel wrapper reduces by itself, in no call of its own."""
    if subject.activity.kind == "backward":
        return True
    run = []
    for frame in _stack(case, subject):
        if not is_library(frame):
            break
        run.append("/" + frame.file)
    return any(part in file for file in run for part in _WRAPPERS)


def _parting(training: Sequence[Frame], past: Sequence[Frame]) -> tuple[Frame, Frame] | None:
    """The frames of the user's function in which two stacks part, the second one further down.

    None where they part elsewhere, or the second one is not further.
    """
    for one, other in zip(reversed(training), reversed(past), strict=False):
        if (one.file, one.name) != (other.file, other.name):
            return None
        if one.line != other.line:
            return (one, other) if other.line > one.line and not is_library(one) else None
    return None


UNEVEN = Rule(
    cause="uneven-inputs",
    title="A rank has run out of data before the others",
    seen="Some wait in what DistributedDataParallel or FSDP reduces by itself in every step; this "
    "rank waits in an operation further down in the same function.",
    excluded="Somebody is outside communication. Both wait in operations that the program calls "
    "itself: `mismatched-collective`.",
    confidence=0.8,
    next_steps=("Compare len(dataloader) between ranks", "drop_last=True, or Join"),
    find=_uneven,
)
