"""Causes in what ranks called init_process_group with, whatever their environment says.

A program may take rank and world size from a file of its own, or change its environment. What it
really uses shows in frames of torch (`Process.told_size` and its kin).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import dump_step
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import fold, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.text.commands import Step


def _mistold(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """What ranks called init_process_group with cannot all be true."""
    told = [s for s in case.joining if s.rank.process.told_size]
    if not told or case.seats or case.contradictions:
        return
    started = len({s.number for s in case.subjects})
    sizes: dict[int, list[Subject]] = defaultdict(list)
    for one in told:
        sizes[one.rank.process.told_size or 0].append(one)
    groups = sorted(sizes.items(), key=lambda one: (-len(one[1]), one[0] != started))
    largest = max(sizes)
    if len(groups) > 1 and all(len(some) % size == 0 for size, some in groups):
        return  # worlds of their own, each complete
    if len(groups) > 1 and (largest > started or len(told) == started):
        yield _sizes_differ(case, groups)
    elif largest > started:
        yield _too_many(case, told, largest, started)
    elif largest == started:
        yield from _twice(case, told)


def _sizes_differ(case: Case, groups: Sequence[tuple[int, list[Subject]]]) -> Hit:
    odd = [s for _, some in groups[1:] for s in some]
    parts = [f"{size} ({name_ranks(some)})" for size, some in reversed(groups[:SHOWN])]
    text = f"world_size of init_process_group differs: {', '.join(parts)}"
    return _told_wrong(case, odd, text, "give all of them the same world_size")


def _too_many(case: Case, told: Sequence[Subject], size: int, started: int) -> Hit:
    """All that wait in init_process_group were told more ranks than there are."""
    odd = list(told) if len(case.joining) < len(case.waiters) else []
    numbers = {s.rank.process.told_rank for s in told}
    whole = len(told) == started and None not in numbers
    lacking = set(range(min(size, started + 1024))) - numbers if whole else set()
    text = f"world_size of init_process_group is {size} for {name_ranks(told)}, and "
    text += f"{started} {'rank is' if started == 1 else 'ranks are'} there"
    if lacking:
        text += f": {name_ranks(lacking)} {'was' if len(lacking) == 1 else 'were'} not seen"
    fix = f"start {size} ranks, or tell the program {started}: it does not take WORLD_SIZE from its"
    fix += " environment, or changes it"
    return _told_wrong(
        case,
        odd,
        text,
        fix,
        "if there are more ranks, on nodes that hangtop was not pointed at, look there",
    )


def _twice(case: Case, told: Sequence[Subject]) -> Iterator[Hit]:
    """One rank was given to two."""
    by_number: dict[int, list[Subject]] = defaultdict(list)
    for one in told:
        if one.rank.process.told_rank is not None:
            by_number[one.rank.process.told_rank].append(one)
    twice = {number: some for number, some in by_number.items() if len(some) > 1}
    if not twice:
        return
    involved = [s for some in twice.values() for s in some]
    odd = [s for s in involved if s.rank.process.told_rank != s.number]
    text = "init_process_group was called with " + ", and ".join(
        f"rank={number} by {name_ranks(some)}" for number, some in list(twice.items())[:SHOWN]
    )
    lacking = set(range(len(case.subjects))) - set(by_number)
    if lacking and len(told) == len(case.subjects):
        text += f", and by none with rank={fold(lacking)}"
    yield _told_wrong(case, odd or involved, text, "give every process a rank of its own")


def _told_wrong(case: Case, odd: Sequence[Subject], text: str, *steps: str) -> Hit:
    told = [s for s in case.joining if s.rank.process.told_size]
    variable = next((s.rank.process.env.get("WORLD_SIZE") for s in told), None)
    return Hit(
        subjects=tuple(odd),
        explained=case.waiters,
        summary=sentence(case, text, blamed=odd),
        evidence=(
            *(
                fact(
                    "stacks",
                    s.number,
                    f"joins as {rank_name(s.rank.process.told_rank)} of {s.rank.process.told_size}",
                )
                for s in [*odd, *besides(told, odd)][:SHOWN]
                if s.rank.process.told_rank is not None
            ),
            *((fact("environment", None, f"WORLD_SIZE={variable}"),) if variable else ()),
        ),
        steps=(*_locals_step(odd or told), *map(Advice, steps)),
    )


def _locals_step(some: Sequence[Subject]) -> Iterator[Step]:
    for one in some[:1]:
        yield dump_step(one, "--each --locals", why="see rank and world_size in the locals")


MISTOLD = Rule(
    cause="launch-misconfigured",
    title="Ranks called init_process_group with what cannot all be true",
    seen="In frames of torch: a world_size that is greater than the number of ranks started, that "
    "differs between ranks, or one rank number that two were given; whatever environments say.",
    excluded="Ranks are missing that the environment tells of: `rank-never-joined`.",
    confidence=0.9,
    next_steps=("Give all ranks one world_size, and each a rank of its own",),
    find=_mistold,
    states=AT_START,
    complete="what each rank was given stands in the frame of its own call",
)
