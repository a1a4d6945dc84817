"""Ranks that write a checkpoint while the others wait: by torch, or piece by piece themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.positions import MOVES_S, position_text
from hangtop_core.analysis.verdict.saving import saver, writes
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.slow import held_up
from hangtop_core.analysis.verdict.steps import on, profile_step
from hangtop_core.analysis.verdict.storage import WHY_SLOW, saves_to_nowhere
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.model.meters import latest
from hangtop_core.text.commands import Advice, Sign
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case

BY_NAME = 0.7
"""Confidence where only the name of a function, or of a file, tells that it is a checkpoint."""
SAMPLES = 4
"""Samples at least that show all ranks in the functions of torch that save."""


def _checkpoint(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    short = case.progress.state == "progressing" and case.waited_s < STALLED_AFTER_S
    if short and not _all_save(case):
        yield from _step_by_step(case)
        return
    named = {id(s): one for s in left if (one := saver(case, s)) is not None}
    writing = [s for s in left if id(s) in named and not saves_to_nowhere(s)]
    for group in alike(writing, lambda s: (s.activity.site, named[id(s)])):
        first = group[0]
        by = named[id(first)]
        does, file = ("write" if by.what else "save"), first.rank.process.file
        if by.function:
            what = f", as {by.function} is named,{by.what}"
        else:
            what = f"{by.what}, as the file is named," if by.file else by.what
        moved = latest((first.rank.io_moved_at, first.rank.file_moved_at))
        told = "and no bytes move"
        if moved is not None and case.at - moved < MOVES_S:
            told = f"and {is_are(group, 'its', 'their')} bytes written grow: not a hang"
        if file is not None and file.writes:
            whose = is_are(group, "its", f"{rank_name(first.number)}'s")
            told += f"; {whose} position is {position_text(case, first)}"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, f'{does}s', does)}{what} at "
                f"{first.activity.at} {told}",
            ),
            evidence=common_facts(case, group),
            steps=(
                on(
                    first,
                    "grep",
                    "wchar",
                    f"/proc/{first.pid}/io",
                    Sign.THEN,
                    "sleep",
                    "5",
                    Sign.THEN,
                    "grep",
                    "wchar",
                    f"/proc/{first.pid}/io",
                ),
                *((WHY_SLOW,) if file is not None and file.writes else ()),
                Advice("raise the process group's timeout, or save asynchronously"),
            ),
            confidence=BY_NAME if by.by_name else None,
        )


def _all_save(case: Case) -> bool:
    """Whether all ranks save by torch, and were met at nothing else for seconds: nobody waits then.

    In one that comes again and again a job that makes steps is not met each time on all ranks.
    """
    return bool(case.subjects) and all(
        s.activity.kind == "checkpoint"
        and (sample := s.rank.sample) is not None
        and sample.count >= SAMPLES
        and sample.same_functions_since is not None
        and sample.at - sample.same_functions_since >= STALLED_AFTER_S
        and (moved := latest((s.rank.io_moved_at, s.rank.file_moved_at))) is not None
        and case.at - moved < MOVES_S
        for s in case.subjects
    )


def _step_by_step(case: Case) -> Iterator[Hit]:
    """One rank that holds up the others at each step, and writes a checkpoint meanwhile."""
    found = held_up(case)
    if found is None:
        return
    subject = found.by
    does = writes(case, subject)
    if not does or saves_to_nowhere(subject):
        return
    yield Hit(
        subjects=(subject,),
        summary=f"{who([subject])} {does}, and holds up the others, step by step: {found.told}",
        evidence=common_facts(case, [subject]),
        steps=(
            profile_step(subject, "-d 20"),
            Advice("save less often, compress less, or in a process of its own"),
        ),
        confidence=BY_NAME,
    )


CHECKPOINT = Rule(
    cause="checkpoint-slow",
    title="A rank is writing a checkpoint",
    seen="torch.save or torch.distributed.checkpoint in the stack of a minority, or for "
    f"{STALLED_AFTER_S:.0f} s and more, while bytes move, in those of all ranks; also below a file "
    "of the program's own, where the rank has written much in the last "
    f"{MOVES_S:.0f} s. With confidence {BY_NAME} a function of the program that is named so, or a "
    "file that it writes (`model-00002-of-00040.bin`, `step-6/optim.pt.tmp`), where it reads no "
    "other and fetches, copies or converts nothing. With the same confidence a rank that holds up "
    "the others step by step, as a `straggler`, while it, or a thread of its that runs and uses "
    "more than its main thread, writes one.",
    excluded="It is in state D, and the server of its file system does not answer: `io-wait`.",
    confidence=0.8,
    next_steps=("Wait; raise the timeout; save asynchronously",),
    find=_checkpoint,
    needs=(More("descriptors", "which file it is, and whether its server answers"),),
    states=ALWAYS,
)
