"""The ranks that were missing where others timed out, as far as logs show. Pure.

Where ranks print their sequence numbers, `conclude` looks at these first.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.judging.wording import code_of, event, evidence, subject, verdict
from hangtop_core.logs.meaning.steps import STEPS, UNTOLD, UNTOLD_FEW
from hangtop_core.model.file_log import MAX_DIGITS
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Fold, Judged, Position

WHOLE_JOB = frozenset({"0", "?", "default_pg"})
"""Watchdogs' names of the group of all ranks; before torch 2.4 there is none."""


def of_waits(judged: Judged, fold: Fold) -> Iterator[Verdict]:
    """Yield the verdict on a timeout without sequence numbers: silent ranks are suspected."""
    waited = _timed_out(judged, fold)
    cause = fold.record.cause or "missing-collective"
    joined = _joined(judged.positions)
    silent = sorted(set(judged.ranks) - waited - joined)
    named = _numbers(fold.record.fields.get("ranks", ""))
    if fold.record.code != "T14" and cause != "missing-collective":
        text = f"{subject(fold)}: {event(fold)}"
        yield verdict(cause, 0.75, (), waited, text, [evidence(fold)])
    elif named or (silent and len(silent) * 2 <= len(judged.ranks)):
        yield _of_absent(judged, fold, waited, named, silent)
    elif missing := _hole(judged, fold, waited):
        text = f"{names(missing)} did not come where {names(sorted(waited))} waited: {event(fold)}"
        text += f". There is no line of {names(missing)}"
        facts = [evidence(fold), Evidence("log", None, f"there is no line of {names(missing)}")]
        yield verdict(cause, 0.6, missing, waited, text, facts)
    elif judged.positions and not silent and not judged.unheard and len(waited | joined) > 1:
        waited |= joined
        text = f"all of {names(sorted(waited))} had joined and none got on: {event(fold)}"
        facts = [evidence(fold), *_ruled_out(judged, waited)]
        yield verdict("all-joined-transport", 0.55, (), waited, text, facts)
    elif went_on := _went_on(judged, waited):
        text = f"{subject(went_on)}: {event(went_on)}; {names(sorted(waited))} waited in vain. "
        text += "A rank that catches an error leaves out the collectives between it and where it "
        text += "goes on"
        facts = [evidence(went_on), evidence(fold)]
        yield verdict("missing-collective", 0.5, went_on.ranks, waited, text, facts)
    elif elsewhere := _elsewhere(judged):
        text = f"{names(elsewhere)} waited at another place than the others, and may have left out "
        text += f"what these waited for: {event(fold)}"
        facts = [evidence(fold), *_ruled_out(judged, waited)]
        yield verdict("missing-collective", 0.45, elsewhere, waited, text, facts)
    else:
        yield _untold(judged, fold, waited)


def _timed_out(judged: Judged, first: Fold) -> set[int]:
    return {r for f in (first, *judged.follows) if f.record.part == "timeout" for r in f.ranks}


def _of_absent(
    judged: Judged, fold: Fold, waited: set[int], named: Sequence[int], silent: Sequence[int]
) -> Verdict:
    """Return the verdict on ranks that a line names as absent, or that did not wait."""
    guilty = named or silent
    before = [f for f in judged.survived if f.ranks and set(f.ranks) <= set(guilty)]
    waited = waited | (judged.victims - set(guilty))
    text = f"{names(guilty)} did not come where {names(sorted(waited))} waited"
    if named:
        waits = [f for f in judged.follows if f.record.part == "timeout" and f.record.where]
        text += f", in a monitored barrier{waits[0].record.from_where if waits else ''}"
    else:
        text += f": {event(fold)}"
    if before:
        text += f"; before, {subject(before[0])} {event(before[0])}"
    cause = fold.record.cause or "missing-collective"
    facts = [evidence(fold), *map(evidence, before[:2]), *last_lines(judged, guilty)]
    return verdict(cause, 0.75 if named else 0.7, guilty, waited, text, facts)


def _untold(judged: Judged, fold: Fold, waited: set[int]) -> Verdict:
    """Return the verdict on a timeout whose missing ranks are unknown."""
    alone = len(waited) == 1
    held = code_of(fold) == "T3"
    text = f"{subject(fold)}: {event(fold)}; {'which' if held else 'for whom'}, these logs do not "
    text += "tell" + "; there is no line of another rank" * alone
    facts = [evidence(fold), *_ruled_out(judged, waited)]
    steps = UNTOLD_FEW if alone or judged.unheard else UNTOLD
    steps = STEPS["gil-held"] if held else steps
    return verdict("unknown", 0.3, (), waited, text, facts, steps=steps)


def _hole(judged: Judged, fold: Fold, waited: set[int]) -> tuple[int, ...]:
    """Return the ranks without any line, where all other ranks waited for one operation.

    In groups other than that of all ranks, silent ranks may be of no matter.
    """
    group = fold.record.fields.get("desc") or fold.record.fields.get("pg") or "0"
    groups = {position.group for position in judged.positions}
    whole = (groups | {group}) <= WHOLE_JOB and waited >= set(judged.ranks)
    few = len(judged.unheard) * 2 <= len(judged.unheard) + len(judged.ranks)
    return judged.unheard if whole and few else ()


def _joined(positions: Sequence[Position]) -> set[int]:
    """Return the ranks that began as much as any other of their groups, if several print it."""
    enqueued: dict[str, list[int]] = defaultdict(list)
    for position in positions:
        enqueued[position.group].append(position.enqueued)
    behind = {
        position.rank for position in positions if position.enqueued < max(enqueued[position.group])
    }
    return {position.rank for position in positions if len(enqueued[position.group]) > 1} - behind


def _went_on(judged: Judged, waited: set[int]) -> Fold | None:
    """Return the error that few ranks survived before others timed out."""
    candidates = (f for f in judged.survived if 0 < len(f.ranks) * 2 <= max(len(waited), 1))
    return next(candidates, None)


def _ruled_out(judged: Judged, waited: set[int]) -> Iterator[Evidence]:
    """Yield what does not explain the timeout, as far as logs show."""
    if len(waited) > 1 and not set(judged.ranks) - waited:
        yield Evidence("log", None, f"none is silent: all of {names(judged.ranks)} waited in vain")
    if not judged.survived:
        yield Evidence("log", None, "no rank has printed an error of its own before")
    if len(judged.positions) > 1:
        text = "none is behind: by their watchdogs all had begun as much"
    else:
        text = "no watchdogs of several ranks have printed how far these were"
    yield Evidence("log", None, text)
    places = _places(judged)
    if len(places) == 1:
        yield Evidence("log", None, f"all of them waited at one place, {next(iter(places))}")
    elif places:
        text = "; ".join(f"{names(ranks)} at {at}" for at, ranks in list(places.items())[:4])
        yield Evidence("log", None, clean(f"they waited at different places: {text}", 600))


def _places(judged: Judged) -> dict[str, tuple[int, ...]]:
    """Return the waiting ranks by their place in the program, from tracebacks."""
    waits = [f for f in (judged.first, *judged.follows) if f and f.record.part == "timeout"]
    places: dict[str, tuple[int, ...]] = {}
    for fold in waits:
        if fold.record.where and fold.ranks:
            at = fold.record.where.text
            places[at] = tuple(sorted({*places.get(at, ()), *fold.ranks}))
    return places


def _elsewhere(judged: Judged) -> tuple[int, ...]:
    """Return the ranks that waited at another place than most; none for several places."""
    places = sorted(_places(judged).values(), key=len)
    return places[0] if len(places) == 2 and len(places[0]) * 2 < sum(map(len, places)) else ()


def last_lines(judged: Judged, ranks: Sequence[int]) -> list[Evidence]:
    """Return the last lines of the first few of some ranks."""
    return [
        Evidence("log", rank, f"its last line: {judged.last[rank][0]}")
        for rank in ranks[:4]
        if rank in judged.last
    ]


def _numbers(text: str) -> list[int]:
    words = (word for word in text.replace(",", " ").split() if word.isdecimal())
    return [int(word) for word in words if len(word) <= MAX_DIGITS][:4096]
