"""Verdicts from logs alone: what the first error means, who is to blame, what to do.

Pure. `hangtop logs` prints them; for a job that can be observed, rules weigh the same records
against what its processes do.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.judging.ended import TOLD_TO
from hangtop_core.logs.judging.finished import of_finished
from hangtop_core.logs.judging.telling import BOTH_ENDS, code_of, evidence, told, verdict, who
from hangtop_core.logs.judging.waits import last_lines, of_waits
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
"""Confidence below which it is said that a rank may not have ended."""
SHOWN = 6
"""Errors that are told apart, one verdict each."""

_NOBODY = frozenset({"store-port-taken", "store-unreachable"})
"""Causes that no rank is to blame for, whoever tells of them."""
_LOST = frozenset({"N6", "N10"})
"""Lines by which NCCL tells that a rank is lost."""


def conclude(judged: Judged) -> tuple[Verdict, ...]:
    """Verdicts, best first."""
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


def _once(found: Iterable[Verdict]) -> Iterator[Verdict]:
    seen = set()
    for one in sorted(found, key=lambda one: -one.confidence):
        key = (one.cause, tuple(c.rank for c in one.culprits))
        if key not in seen:
            seen.add(key)
            yield one


def _sure(one: Fold) -> float:
    """How sure it is that an error ended its rank."""
    sure = min(max(record.sure for record in one.members), BOTH_ENDS.get(code_of(one), 1.0))
    return sure if one.record.at is not None else min(sure, 0.8)


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
    text = f"{who(root)}: {told(root)}{_effect(judged, root, confidence)}"
    facts = [evidence(root), *consequences]
    node = root.nodes[0] if root.nodes else ""
    return verdict(cause, confidence, guilty, victims, text, facts, node, _steps(root, ranks))


def _consequences(judged: Judged, root: Fold) -> list[Fold]:
    """Return what else its ranks printed, and who lost the connection, the first few of each."""
    same = [f for f in judged.follows if set(f.ranks) & set(root.ranks)]
    return [*same[:3], *[f for f in _lost_connections(judged) if f not in same][:2]]


def _lost_connections(judged: Judged) -> list[Fold]:
    return [f for f in judged.follows if f.record.part == "cascade" and f.record.code != "T16"]


def _effect(judged: Judged, root: Fold, confidence: float) -> str:
    """Say who lost the connection to a root, or that it may have ended nothing."""
    # Who was only told by another rank to dump its recorder has lost no connection.
    folds = [f for f in _lost_connections(judged) if f.record.code != "T5"]
    lost = sorted({rank for f in folds for rank in f.ranks}.difference(root.ranks))
    if root is judged.first and lost and code_of(root) not in BOTH_ENDS:
        return f"; {names(lost)} lost the connection to it"
    if confidence < UNSURE and root.record.cause in (None, "", "rank-exited"):
        return "; that this ended it, these logs do not tell"
    return ""


def _steps(one: Fold, ranks: Sequence[int]) -> tuple[Step, ...]:
    """What to do about an error, where the line tells more than its cause."""
    if one.record.cause == "mismatched-size" and code_of(one) in BOTH_ENDS:
        return (*STEPS["mismatched-size"], *NOT_ALIKE)
    return TOLD_TO_END if not ranks and one.record.code in ("T16", "SLURM") else ()


def _aborted(judged: Judged) -> tuple[int, ...]:
    """The one rank that has aborted, as its launcher says: what C++ prints then names no rank."""
    aborts = {r for f in judged.follows if f.record.fields.get("exit") == "-6" for r in f.ranks}
    return tuple(aborts) if len(aborts) == 1 else ()


def _of_survived(one: Fold) -> Iterator[Verdict]:
    """Nothing has ended a rank: what an error tells that some went on after."""
    cause = one.record.cause
    if cause not in (None, "rank-exited", "missing-collective"):
        text = f"{who(one)}: {told(one)}"
        guilty = () if cause in _NOBODY else one.ranks
        yield verdict(cause or "", 0.4, guilty, (), text, [evidence(one)])


def _behind(positions: Sequence[Position]) -> Iterator[tuple[list[Position], list[Position]]]:
    """Groups in which some ranks have begun less than others: those behind, and the others."""
    groups: dict[str, list[Position]] = defaultdict(list)
    for one in positions:
        groups[one.group].append(one)
    for some in groups.values():
        least = min(one.enqueued for one in some)
        less = [one for one in some if one.enqueued == least]
        if len(less) < len(some) and len(less) * 2 <= len(some):
            yield less, some


def _of_behind(judged: Judged, one: Fold) -> list[Verdict]:
    """Who is behind in a group, as the numbers tell that were printed."""
    behind = islice(_behind(judged.positions), SHOWN)
    return [_missing(one, less, some) for less, some in behind]


def _missing(one: Fold, less: Sequence[Position], some: Sequence[Position]) -> Verdict:
    guilty = sorted(position.rank for position in less)
    others = [position for position in some if position.rank not in guilty]
    # All began that one, so what the others wait for is the next.
    seq, op = less[0].enqueued + 1, next((p.op for p in others if p.op), "") or "a collective"
    group = "" if less[0].group == "?" else f" of group {less[0].group}"
    text = f"{names(guilty)} did not issue {op.lower()} #{seq}{group} that "
    text += f"{names([p.rank for p in others])} {'waits' if len(others) == 1 else 'wait'} for"
    facts = [
        Evidence("log", p.rank, f"had begun #{p.enqueued}{group}, completed #{p.completed}")
        for p in (*less[:3], *others[:3])
    ]
    return verdict(
        "missing-collective", 0.85, guilty, [p.rank for p in others], text, [*facts, evidence(one)]
    )


def _of_silence(judged: Judged, one: Fold) -> Iterator[Verdict]:
    """Only consequences: who said nothing died without a word, or its log is not here."""
    lost = {r for f in (one, *judged.follows) if f.record.part == "cascade" for r in f.ranks}
    left = next((f for f in judged.follows if _by_itself(f, lost)), None)
    silent = sorted(set(judged.ranks) - lost - judged.finished)
    if left is not None:
        yield _of_left(judged, one, left, lost)
    elif finished := of_finished(judged, one, lost):
        yield finished
    elif silent and len(silent) * 2 <= len(judged.ranks):
        yield _of_silent(judged, one, silent, lost)
    elif code_of(one) in _LOST:
        yield _of_unheard(judged, one, lost)
    else:
        text = f"{who(one)}: {told(one)}. That only follows from what another rank did, whose log "
        text += "is not here, or which ended without a word"
        yield verdict("unknown", 0.3, (), lost, text, [evidence(one)])


def _of_left(judged: Judged, first: Fold, left: Fold, lost: set[int]) -> Verdict:
    """A rank left, as its launcher says, and the others lost the connection to it."""
    folds = [f for f in (first, *judged.follows) if f.record.code not in LAUNCHERS]
    cut = sorted({r for f in folds if f.record.part == "cascade" for r in f.ranks})
    text = f"{names(left.ranks)} {told(left)}, and printed no error that is here"
    text += f"; {names(cut)} lost the connection to it" if cut else ""
    facts = [evidence(left), *map(evidence, folds[:2])]
    return verdict("rank-exited", 0.8, left.ranks, lost, text, facts)


def _of_silent(judged: Judged, first: Fold, silent: Sequence[int], lost: set[int]) -> Verdict:
    """Few ranks printed nothing of it: these ended without a word, or one of them did."""
    alone = len(silent) == 1
    if alone:
        text = f"{names(silent)} ended without a word; {names(sorted(lost))} lost the connection"
    else:
        text = f"one of {names(silent)} at least ended without a word; "
        text += f"{names(sorted(lost))} lost the connection"
    facts = [evidence(first), *last_lines(judged, silent)]
    return verdict("rank-crashed", 0.6 if alone else 0.5, silent, lost, text, facts)


def _of_unheard(judged: Judged, one: Fold, lost: set[int]) -> Verdict:
    """NCCL has lost a rank, and all that have printed something follow: it is none of these."""
    some, facts = judged.unheard, [evidence(one)]
    told_by = [f for f in judged.follows if f.record.code == "T5" and f.ranks]
    facts += [evidence(f) for f in told_by[:2]]
    say = "say" if len(one.ranks) > 1 else "says"
    text = f"NCCL lost a rank, or the network, as {who(one)} {say}: {told(one)}"
    if not some or len(some) * 2 > len(some) + len(judged.ranks):
        text += "; which one, these logs do not tell"
        return verdict("unknown", 0.3, (), lost, text, facts, steps=GONE)
    text += (
        f". It is none of {names(judged.ranks)}, who follow; {names(some)} printed nothing, and "
    )
    text += "most likely left" if len(some) == 1 else "one of these most likely left"
    facts.append(Evidence("log", None, f"there is no line of {names(some)}"))
    sure = 0.6 if len(some) == 1 else 0.5
    return verdict("rank-exited", sure, some, lost, text, facts, steps=GONE)


def _by_itself(one: Fold, lost: set[int]) -> bool:
    """Whether a launcher says how ranks left that nobody has told to, and that lost nobody."""
    status = one.record.fields.get("exit", "")
    told_to = status in map(str, TOLD_TO)
    return one.record.part == "exit" and bool(status) and not told_to and not lost & set(one.ranks)


def _of_exit(judged: Judged, one: Fold) -> Verdict:
    text = f"{who(one)} {told(one)}; why, its own log tells, which is not here"
    if one.ranks:
        text = text.replace(f"{names(one.ranks)} rank", "rank")
    return verdict("rank-exited", 0.6, one.ranks, judged.victims, text, [evidence(one)])


def _of_setup(judged: Judged) -> Iterator[Verdict]:
    """What was set up in a way that cannot work, where something did not work."""
    if judged.first is None:
        return
    nodes = {node for one in judged.notes for node in one.nodes}
    for one in judged.notes:
        if one.record.cause == "wrong-interface" and len(nodes) > 1:
            met = any(f.record.code == "N8C" for f in judged.notes)
            text = f"{who(one)}: {told(one)}"
            yield verdict(
                "wrong-interface", 0.5 if met else 0.85, one.ranks, (), text, [evidence(one)]
            )
            break
    versions = {f.record.fields["nccl"]: f for f in judged.notes if f.record.code == "version"}
    if len(versions) > 1:
        text = "ranks run different versions of NCCL: " + ", ".join(
            f"{version} ({who(one)})" for version, one in versions.items()
        )
        facts = [evidence(one) for one in versions.values()]
        yield verdict("version-mismatch", 0.5, (), (), text, facts)


def _of_init(judged: Judged) -> Iterator[Verdict]:
    """Communicators that some ranks began to join and not all have joined."""
    started: dict[str, dict[int, int]] = defaultdict(dict)
    complete: dict[str, set[int]] = defaultdict(set)
    size: dict[str, int] = {}
    for one in judged.notes:
        for record in one.members:
            key = record.fields.get("id")
            if record.code not in ("N8", "N8C") or key is None:
                continue
            number = int(record.fields["comm_rank"])
            size[key] = int(record.fields["nranks"])
            if record.code == "N8":
                started[key][number] = record.rank if record.rank is not None else number
            else:
                complete[key].add(number)
    for key, some in started.items():
        absent = sorted(set(range(min(size[key], 1 << 16))) - set(some))
        left = sorted(set(some) - complete[key])
        if not left:
            continue
        guilty = absent if absent and len(absent) * 2 <= size[key] else []
        text = f"{plural(len(left), 'rank')} began to join NCCL's communicator {key} of "
        text += f"{size[key]} and did not get through"
        text += f"; {names(guilty)} of it never began" if guilty else ""
        confidence = 0.7 if guilty else 0.5
        yield verdict("nccl-init-incomplete", confidence, guilty, some.values(), text, ())
