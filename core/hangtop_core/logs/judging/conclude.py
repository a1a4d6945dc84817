"""Verdicts from logs alone: the meaning of the first error, the culprit, the next steps.

Pure. `hangtop logs` prints them; for a job that can be observed, rules weigh the same records
against the state of its processes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.judging.ended import TOLD_TO
from hangtop_core.logs.judging.finished import of_finished
from hangtop_core.logs.judging.waits import last_lines, of_waits
from hangtop_core.logs.judging.wording import (
    BOTH_ENDS,
    code_of,
    event,
    evidence,
    subject,
    verdict,
)
from hangtop_core.logs.meaning.infiniband import ends_of, unconnected
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.meaning.mismatch import of_mismatch
from hangtop_core.logs.meaning.steps import GONE, NO_PATH, NOT_ALIKE, STEPS, TOLD_TO_END
from hangtop_core.text.clean import plural
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Fold, Judged, Position
    from hangtop_core.text.commands import Step

UNSURE = 0.7
"""Confidence below which a verdict says that the rank may not have ended."""
SHOWN = 6
"""Maximum number of errors with a verdict each."""

_NOBODY = frozenset({"store-port-taken", "store-unreachable"})
"""Causes without a culprit, whichever rank prints them."""
_LOST = frozenset({"N6", "N10"})
"""Lines by which NCCL reports that a rank is lost."""


def conclude(judged: Judged) -> tuple[Verdict, ...]:
    """Return verdicts, best first."""
    verdicts = list(_of_first(judged, judged.first)) if judged.first is not None else []
    verdicts += [_of_root(judged, fold, min(0.5, _sure(fold))) for fold in judged.others[:SHOWN]]
    verdicts += _of_setup(judged)
    verdicts = verdicts or list(_of_init(judged))
    return tuple(_once(verdicts))


def _of_first(judged: Judged, first: Fold) -> Iterable[Verdict]:
    part = first.record.part
    if part == "root":
        return [_of_root(judged, first, _sure(first))]
    if part == "timeout":
        return _of_behind(judged, first) or of_mismatch(judged) or of_waits(judged, first)
    if part == "cascade":
        return _of_behind(judged, first) or _of_silence(judged, first)
    if part == "exit":
        return [_of_exit(judged, first)]
    return _of_survived(first) if part == "survived" else ()


def _once(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    keys = set()
    for item in sorted(verdicts, key=lambda item: -item.confidence):
        key = (item.cause, tuple(c.rank for c in item.culprits))
        if key not in keys:
            keys.add(key)
            yield item


def _sure(fold: Fold) -> float:
    """Return the confidence that an error ended its rank."""
    sure = min(max(record.sure for record in fold.members), BOTH_ENDS.get(code_of(fold), 1.0))
    return sure if fold.record.at is not None else min(sure, 0.8)


def _of_root(judged: Judged, root: Fold, confidence: float) -> Verdict:
    cause = root.record.cause or "rank-exited"
    victims = {*root.ranks, *(judged.victims if root is judged.first else ())}
    consequences = [evidence(fold) for fold in _consequences(judged, root)]
    ends = unconnected(judged.folds()) if cause == "nccl-ib-error" else ()
    if ends:
        text = f"no InfiniBand path between {ends[0]} and {ends[1]}: each says that the other does "
        text += "not answer (error 12)"
        facts = [*(ends_of(judged.folds(), ends) or (evidence(root),)), *consequences]
        return verdict(cause, confidence, (), victims, text, facts, "", NO_PATH)
    ranks = root.ranks or (_aborted(judged) if root.record.code == "G4" else ())
    guilty = () if cause in _NOBODY or code_of(root) in BOTH_ENDS else ranks
    text = f"{subject(root)}: {event(root)}{_effect(judged, root, confidence)}"
    facts = [evidence(root), *consequences]
    node = root.nodes[0] if root.nodes else ""
    return verdict(cause, confidence, guilty, victims, text, facts, node, _steps(root, ranks))


def _consequences(judged: Judged, root: Fold) -> list[Fold]:
    """Return what else the ranks printed, and the ranks that lost the connection."""
    same = [f for f in judged.follows if set(f.ranks) & set(root.ranks)]
    return [*same[:3], *[f for f in _lost_connections(judged) if f not in same][:2]]


def _lost_connections(judged: Judged) -> list[Fold]:
    return [f for f in judged.follows if f.record.part == "cascade" and f.record.code != "T16"]


def _effect(judged: Judged, root: Fold, confidence: float) -> str:
    """Return which ranks lost the connection to a root, or that it may have ended no rank."""
    # A rank that was only told by another rank to dump its recorder has lost no connection.
    folds = [f for f in _lost_connections(judged) if f.record.code != "T5"]
    lost = sorted({rank for f in folds for rank in f.ranks}.difference(root.ranks))
    if root is judged.first and lost and code_of(root) not in BOTH_ENDS:
        return f"; {names(lost)} lost the connection to it"
    if confidence < UNSURE and root.record.cause in (None, "", "rank-exited"):
        return "; that this ended it, these logs do not tell"
    return ""


def _steps(fold: Fold, ranks: Sequence[int]) -> tuple[Step, ...]:
    """Return next steps for an error where its line says more than its cause."""
    if fold.record.cause == "mismatched-size" and code_of(fold) in BOTH_ENDS:
        return (*STEPS["mismatched-size"], *NOT_ALIKE)
    return TOLD_TO_END if not ranks and fold.record.code in ("T16", "SLURM") else ()


def _aborted(judged: Judged) -> tuple[int, ...]:
    """Return the only rank that aborted by its launcher's report: C++ messages name no rank."""
    aborts = {r for f in judged.follows if f.record.fields.get("exit") == "-6" for r in f.ranks}
    return tuple(aborts) if len(aborts) == 1 else ()


def _of_survived(fold: Fold) -> Iterator[Verdict]:
    """Yield the verdict on an error that some rank survived; no rank has ended by an error."""
    cause = fold.record.cause
    if cause not in (None, "rank-exited", "missing-collective"):
        text = f"{subject(fold)}: {event(fold)}"
        guilty = () if cause in _NOBODY else fold.ranks
        yield verdict(cause or "", 0.4, guilty, (), text, [evidence(fold)])


def _behind(positions: Sequence[Position]) -> Iterator[tuple[list[Position], list[Position]]]:
    """Yield the ranks that have begun the fewest operations of a group, and all ranks of it."""
    groups: dict[str, list[Position]] = defaultdict(list)
    for position in positions:
        groups[position.group].append(position)
    for members in groups.values():
        least = min(position.enqueued for position in members)
        less = [position for position in members if position.enqueued == least]
        if len(less) < len(members) and len(less) * 2 <= len(members):
            yield less, members


def _of_behind(judged: Judged, fold: Fold) -> list[Verdict]:
    """Return verdicts on the ranks that are behind in a group, by their sequence numbers."""
    behind = islice(_behind(judged.positions), SHOWN)
    return [_missing(fold, less, members) for less, members in behind]


def _missing(fold: Fold, less: Sequence[Position], members: Sequence[Position]) -> Verdict:
    guilty = sorted(position.rank for position in less)
    ahead = [position for position in members if position.rank not in guilty]
    # All ranks began that operation, so the others wait for the next.
    seq, op = less[0].enqueued + 1, next((p.op for p in ahead if p.op), "") or "a collective"
    group = "" if less[0].group == "?" else f" of group {less[0].group}"
    text = f"{names(guilty)} did not issue {op.lower()} #{seq}{group} that "
    text += f"{names([p.rank for p in ahead])} {'waits' if len(ahead) == 1 else 'wait'} for"
    facts = [
        Evidence("log", p.rank, f"had begun #{p.enqueued}{group}, completed #{p.completed}")
        for p in (*less[:3], *ahead[:3])
    ]
    return verdict(
        "missing-collective", 0.85, guilty, [p.rank for p in ahead], text, [*facts, evidence(fold)]
    )


def _of_silence(judged: Judged, fold: Fold) -> Iterator[Verdict]:
    """Yield the verdict on consequences alone: a silent rank died, or its log is missing."""
    lost = {r for f in (fold, *judged.follows) if f.record.part == "cascade" for r in f.ranks}
    left = next((f for f in judged.follows if _by_itself(f, lost)), None)
    silent = sorted(set(judged.ranks) - lost - judged.finished)
    if left is not None:
        yield _of_left(judged, fold, left, lost)
    elif finished := of_finished(judged, fold, lost):
        yield finished
    elif silent and len(silent) * 2 <= len(judged.ranks):
        yield _of_silent(judged, fold, silent, lost)
    elif code_of(fold) in _LOST:
        yield _of_unheard(judged, fold, lost)
    else:
        text = f"{subject(fold)}: {event(fold)}. That only follows from what another rank did, "
        text += "whose log is not here, or which ended without a word"
        yield verdict("unknown", 0.3, (), lost, text, [evidence(fold)])


def _of_left(judged: Judged, first: Fold, left: Fold, lost: set[int]) -> Verdict:
    """Return the verdict on a rank that exited by its launcher's report."""
    folds = [f for f in (first, *judged.follows) if f.record.code not in LAUNCHERS]
    cut = sorted({r for f in folds if f.record.part == "cascade" for r in f.ranks})
    text = f"{names(left.ranks)} {event(left)}, and printed no error that is here"
    text += f"; {names(cut)} lost the connection to it" if cut else ""
    facts = [evidence(left), *map(evidence, folds[:2])]
    return verdict("rank-exited", 0.8, left.ranks, lost, text, facts)


def _of_silent(judged: Judged, first: Fold, silent: Sequence[int], lost: set[int]) -> Verdict:
    """Return the verdict on few silent ranks: at least one of these ended without a message."""
    alone = len(silent) == 1
    if alone:
        text = f"{names(silent)} ended without a word; {names(sorted(lost))} lost the connection"
    else:
        text = f"one of {names(silent)} at least ended without a word; "
        text += f"{names(sorted(lost))} lost the connection"
    facts = [evidence(first), *last_lines(judged, silent)]
    return verdict("rank-crashed", 0.6 if alone else 0.5, silent, lost, text, facts)


def _of_unheard(judged: Judged, fold: Fold, lost: set[int]) -> Verdict:
    """Return the verdict on a rank that NCCL lost, while all ranks with a log are victims."""
    silent, facts = judged.unheard, [evidence(fold)]
    told_by = [f for f in judged.follows if f.record.code == "T5" and f.ranks]
    facts += [evidence(f) for f in told_by[:2]]
    say = "say" if len(fold.ranks) > 1 else "says"
    text = f"NCCL lost a rank, or the network, as {subject(fold)} {say}: {event(fold)}"
    if not silent or len(silent) * 2 > len(silent) + len(judged.ranks):
        text += "; which one, these logs do not tell"
        return verdict("unknown", 0.3, (), lost, text, facts, steps=GONE)
    text += (
        f". It is none of {names(judged.ranks)}, who follow; {names(silent)} printed nothing, and "
    )
    text += "most likely left" if len(silent) == 1 else "one of these most likely left"
    facts.append(Evidence("log", None, f"there is no line of {names(silent)}"))
    sure = 0.6 if len(silent) == 1 else 0.5
    return verdict("rank-exited", sure, silent, lost, text, facts, steps=GONE)


def _by_itself(fold: Fold, lost: set[int]) -> bool:
    """Whether a launcher reports ranks that exited untold, and that lost no connection."""
    status = fold.record.fields.get("exit", "")
    told_to = status in map(str, TOLD_TO)
    return (
        fold.record.part == "exit" and bool(status) and not told_to and not lost & set(fold.ranks)
    )


def _of_exit(judged: Judged, fold: Fold) -> Verdict:
    text = f"{subject(fold)} {event(fold)}; why, its own log tells, which is not here"
    if fold.ranks:
        text = text.replace(f"{names(fold.ranks)} rank", "rank")
    return verdict("rank-exited", 0.6, fold.ranks, judged.victims, text, [evidence(fold)])


def _of_setup(judged: Judged) -> Iterator[Verdict]:
    """Yield verdicts on settings that cannot work, where an error occurred."""
    if judged.first is None:
        return
    nodes = {node for fold in judged.notes for node in fold.nodes}
    for fold in judged.notes:
        if fold.record.cause == "wrong-interface" and len(nodes) > 1:
            has_communicator = any(f.record.code == "N8C" for f in judged.notes)
            text = f"{subject(fold)}: {event(fold)}"
            yield verdict(
                "wrong-interface",
                0.5 if has_communicator else 0.85,
                fold.ranks,
                (),
                text,
                [evidence(fold)],
            )
            break
    versions = {f.record.fields["nccl"]: f for f in judged.notes if f.record.code == "version"}
    if len(versions) > 1:
        text = "ranks run different versions of NCCL: " + ", ".join(
            f"{version} ({subject(fold)})" for version, fold in versions.items()
        )
        facts = [evidence(fold) for fold in versions.values()]
        yield verdict("version-mismatch", 0.5, (), (), text, facts)


def _of_init(judged: Judged) -> Iterator[Verdict]:
    """Yield verdicts on communicators that not all ranks have joined."""
    started: dict[str, dict[int, int]] = defaultdict(dict)
    complete: dict[str, set[int]] = defaultdict(set)
    size: dict[str, int] = {}
    for fold in judged.notes:
        for record in fold.members:
            key = record.fields.get("id")
            if record.code not in ("N8", "N8C") or key is None:
                continue
            number = int(record.fields["comm_rank"])
            size[key] = int(record.fields["nranks"])
            if record.code == "N8":
                started[key][number] = record.rank if record.rank is not None else number
            else:
                complete[key].add(number)
    for key, began in started.items():
        absent = sorted(set(range(min(size[key], 1 << 16))) - set(began))
        left = sorted(set(began) - complete[key])
        if not left:
            continue
        guilty = absent if absent and len(absent) * 2 <= size[key] else []
        text = f"{plural(len(left), 'rank')} began to join NCCL's communicator {key} of "
        text += f"{size[key]} and did not get through"
        text += f"; {names(guilty)} of it never began" if guilty else ""
        confidence = 0.7 if guilty else 0.5
        yield verdict("nccl-init-incomplete", confidence, guilty, began.values(), text, ())
