"""Findings on jobs with torch: culprits of failures, slow nodes, differing numbers."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.logs.meaning.known import recognise
from hangtop_core.logs.parsing.record import fill
from hangtop_core.nettest import culprits
from hangtop_core.nettest.facts import SETTING, Finding
from hangtop_core.nettest.judge_links import settings
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, size
from hangtop_core.text.commands import Advice, Command, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.nettest.culprits import Culprit
    from hangtop_core.nettest.facts import Facts, JobRun, Outcome
    from hangtop_core.text.commands import Step

SLOW = 0.5
"""Share of the median below which a node is slow."""
_XIDS = ("nvidia-smi", "-q", Sign.THEN, "dmesg", Sign.PIPE, "grep", "-i", "xid")
WAITED = 4.0
"""Factor to the slowest node; a slow node that is faster by more only waited for it."""
NOTABLE = 20e6
"""Bytes per second: differences below this are noise of a machine under load."""
TOLERANCE = 1e-5
"""Relative difference of 32-bit floating point sums in another order: some hundred times its
precision (2**-23) for the few hundred to 65,536 terms that are added up."""
LOOK_FOR_ERRORS = Advice("look for errors of memory, GPU and network there: dmesg, nvidia-smi -q")
_SAY_MORE = Advice("NCCL_DEBUG=INFO and TORCH_CPP_LOG_LEVEL=INFO make the job itself say more")
_RANKS = re.compile(r"\b[Rr]anks? (?:\[[\d, ]{1,60}\]|\d{1,5}\b)")
_NUMBER = re.compile(r"\d+")
DOES = {
    "store": "meet at torch's store",
    "init": "connect to one another",
    "barrier": "wait for one another",
    "all_reduce": "add up numbers",
    "bandwidth": "send to one another",
    "start": "start",
    "numerics": "compute",
    "memory": "use the memory of the GPU",
}


def of_jobs(facts: Facts) -> Iterator[Finding]:
    """Yield the causes of failing jobs, for each backend."""
    for backend in dict.fromkeys(run.backend for run in facts.jobs):
        runs = [run for run in facts.jobs if run.backend == backend]
        last = runs[-1]
        wrong = [
            outcome
            for run in runs
            for outcome in run.outcomes
            if outcome.wrong and outcome.step != "store"
        ]
        if wrong:
            yield from _wrong(facts, runs, wrong)
        elif last.ok and len(runs) > 1:
            yield _wrong_interface(facts, runs[0], last)
        elif not last.ok:
            yield from _failed(facts, last)


def _wrong(facts: Facts, runs: Sequence[JobRun], wrong: Sequence[Outcome]) -> Iterator[Finding]:
    """Yield culprits of wrong numbers: all see a wrong sum, so failing pairs show the culprit."""
    backend = runs[-1].backend
    alone = list(_alone(facts, backend))
    yield from alone
    if alone:
        return
    tried, guilty = _narrowed(facts, backend)
    errors = {outcome.member.place: _named(runs[-1], outcome.error or "") for outcome in wrong}
    evidence = [
        f"{outcome.member.place}, {outcome.step}: {errors[outcome.member.place]}"
        for outcome in wrong[:5]
    ]
    evidence += explained(facts)
    for culprit in guilty:
        yield Finding(
            "numbers-wrong",
            "failure",
            f"numbers come out wrong because of {_subject(facts, culprit)}: "
            + next(iter(errors.values())),
            tuple(dict.fromkeys(name.partition(" ")[0] for name in culprit.nodes)),
            culprit.pairs,
            (_counted(tried), *evidence),
            (LOOK_FOR_ERRORS, *_steps(facts, culprit.nodes)[:-1]),
        )
    if guilty:
        return
    nodes = tuple(dict.fromkeys(outcome.member.node for outcome in wrong))
    apart = [_again((node,), "by itself") for node in runs[-1].nodes if len(nodes) > 1]
    alike = {text: [p for p, its in errors.items() if its == text] for text in errors.values()}
    yield Finding(
        "numbers-wrong",
        "failure",
        "; ".join(f"{nodesets.fold(its)}: {text}" for text, its in list(alike.items())[:2]),
        nodes,
        evidence=tuple(evidence),
        next_steps=(LOOK_FOR_ERRORS, *apart[:2]),
    )


def _wrong_interface(facts: Facts, first: JobRun, last: JobRun) -> Finding:
    nodes = [node for node in last.nodes if facts.is_misled(node)] or list(last.nodes)
    setting = settings(facts, SETTING[last.backend], nodes)
    step, errors = _errors(first)
    return Finding(
        "wrong-interface",
        "failure",
        f"{last.backend} takes a wrong interface on {nodesets.fold(nodes)}: a job fails, and "
        f"works with {setting}",
        tuple(nodes),
        evidence=(f"without it ranks fail to {DOES.get(step, step)}", *errors, *explained(facts)),
        next_steps=(Advice(f"set {setting} for all ranks"),),
    )


def _failed(facts: Facts, run: JobRun) -> Iterator[Finding]:
    step, errors = _errors(run)
    cause = {"store": "store-unreachable", "init": "port-blocked"}.get(step, "job-failed")
    alone = list(_alone(facts, run.backend))
    yield from alone
    if alone:
        return
    tried, guilty = _narrowed(facts, run.backend)
    of = f"a job by {run.backend} over {nodesets.fold(run.nodes)}"
    for culprit in guilty:
        subject = _subject(facts, culprit)
        yield Finding(
            cause,
            "failure",
            f"{of} fails because of {subject}: ranks do not {DOES.get(step, step)}",
            tuple(dict.fromkeys(name.partition(" ")[0] for name in culprit.nodes)),
            culprit.pairs,
            (_counted(tried), *errors, *explained(facts)),
            _steps(facts, culprit.nodes),
        )
    if guilty:
        return
    gone = _own_fault(run)
    cause = "job-failed" if gone else cause
    why = f" because of {gone[0]}" if len(gone) == 1 else ""
    evidence = [*errors, *explained(facts)]
    if tried:
        evidence.insert(0, f"{_counted(tried)}: only together they fail")
    yield Finding(
        cause,
        "failure",
        f"{of} fails{why}: ranks do not {DOES.get(step, step)}",
        tuple(gone) or run.nodes,
        evidence=tuple(evidence),
        next_steps=_steps(facts, tuple(gone) or run.nodes),
    )


def _narrowed(facts: Facts, backend: str) -> tuple[list[JobRun], list[Culprit]]:
    """Return the jobs of two by a backend, and the common culprits of the failing ones."""
    tried = [run for run in facts.pair_jobs if run.backend == backend]
    tested = [(run.units[0], run.units[1]) for run in tried]
    failing = [(run.units[0], run.units[1]) for run in tried if not run.ok]
    both = [*tested, *((b, a) for a, b in tested)]
    return tried, culprits.fold(both, [*failing, *((b, a) for a, b in failing)])


def _alone(facts: Facts, backend: str) -> Iterator[Finding]:
    """Yield findings on GPUs that fail alone."""
    for solo in facts.alone:
        if solo.backend == backend and not solo.ok:
            broken, its = _errors(solo)
            yield Finding(
                "gpu-failed",
                "failure",
                f"{solo.units[0]} does not even {DOES.get(broken, broken)} alone",
                solo.nodes,
                evidence=(*its, *explained(facts)),
                next_steps=(Command("", _XIDS, f"on {solo.nodes[0]}"),),
            )


def _own_fault(run: JobRun) -> list[str]:
    """Return the nodes whose processes or connections ended: their own trouble."""
    return list(dict.fromkeys(outcome.member.node for outcome in run.outcomes if outcome.gone))


def _subject(facts: Facts, culprit: Culprit) -> str:
    if culprit.what == "pair":
        return f"the way between {facts.at(culprit.nodes[0])} and {facts.at(culprit.nodes[1])}"
    if culprit.what == "all":
        return "every pair"
    if culprit.what == "some":
        return f"{len(culprit.pairs) // 2} pairs, most of them with {facts.at(culprit.nodes[0])}"
    return facts.at(culprit.nodes[0])


def _counted(tried: Sequence[JobRun]) -> str:
    good = sum(run.ok for run in tried)
    what = "GPUs" if any(" " in name for name in tried[0].units) else "nodes"
    return f"jobs of two {what}: {good} of {len(tried)} work"


def _errors(run: JobRun) -> tuple[str, list[str]]:
    """Return the step in which most failed, and the distinct errors with their places."""
    bad = [outcome for outcome in run.outcomes if not outcome.ok]
    steps = Counter(outcome.step or "?" for outcome in bad)
    step = steps.most_common(1)[0][0] if steps else "?"
    places_by_text: dict[str, list[str]] = {}
    for outcome in bad:
        places_by_text.setdefault(_named(run, outcome.error or ""), []).append(outcome.member.place)
    return step, [
        f"{nodesets.fold(places)}: {text}" for text, places in list(places_by_text.items())[:4]
    ]


def _named(run: JobRun, error: str) -> str:
    """Return an error with the places of its ranks, whose numbers are of this job alone."""

    def place(match: re.Match[str]) -> str:
        rank = int(match[0])
        return (
            f"{rank} ({run.outcomes[rank].member.place})" if rank < len(run.outcomes) else match[0]
        )

    def places(match: re.Match[str]) -> str:
        return _NUMBER.sub(place, match[0])

    return clean(_RANKS.sub(places, clean(error, 200)), 300)


def explained(facts: Facts) -> list[str]:
    """Return the distinct meanings of known lines that torch and NCCL printed."""
    meanings: dict[str, None] = {}
    for node, lines in facts.lines.items():
        for line in lines:
            row = recognise(line)
            if row is not None and (row[0].part != "info" or row[0].cause):
                meanings[f"{node}: {clean(fill(row[0].means, row[1]), 200)}"] = None
    return list(meanings)[:6]


def _steps(facts: Facts, nodes: Iterable[str]) -> tuple[Step, ...]:
    remaining = [node for node in facts.present if node not in set(nodes)]
    commands = (_again(remaining, "the others by themselves"),) if len(remaining) > 1 else ()
    return (*commands, _SAY_MORE)


def _again(nodes: Sequence[str], why: str) -> Command:
    return Command("", ("hangtop", "nettest", "-w", nodesets.fold(nodes)), why)


def of_rates(facts: Facts) -> Iterator[Finding]:
    """Yield nodes that receive or send much less than others, the slowest first.

    Nodes that are many times faster than the slowest have only waited for it, and are left out.
    """
    for run in facts.jobs:
        in_pairs = _best_of_pairs(facts, run.backend)
        slow: list[tuple[float, float, str, str]] = []
        for measured, alone, word in zip(rates(run), in_pairs, ("receives", "sends"), strict=True):
            slow += [
                (rate, usual, place, word)
                for place, (rate, usual) in _slow(measured).items()
                if not alone or place in _slow(alone)
            ]
        slow.sort()
        for rate, usual, place, word in slow:
            if rate <= WAITED * slow[0][0]:
                yield Finding(
                    "slow-link",
                    "warning",
                    f"{place} {word} {size(rate)}/s by {run.backend}, others {size(usual)}/s",
                    (place.partition(" ")[0],),
                    next_steps=(Advice("hangtop nettest --pairs tells it for each pair of nodes"),),
                )


def _slow(measured: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return places that are much slower than most, with their rate and the usual one."""
    usual = statistics.median(measured.values()) if len(measured) > 2 else 0.0
    return {
        place: (rate, usual)
        for place, rate in measured.items()
        if rate < SLOW * usual and usual - rate > NOTABLE
    }


def _best_of_pairs(facts: Facts, backend: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the best receive and send rate of each place in jobs of two.

    With these, a single slow result in a job of all is not enough: the machine may be busy.
    """
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    for run in facts.pair_jobs:
        if run.backend == backend:
            for best, measured in zip((into, out), rates(run), strict=True):
                best.update(
                    {place: max(best.get(place, 0.0), measured[place]) for place in measured}
                )
    return into, out


def rates(run: JobRun) -> tuple[dict[str, float], dict[str, float]]:
    """Return the best receive and send rate of each place of a job, in bytes per second.

    A rank sends to and receives from others at several distances, so a slow neighbour does not make
    it look slow.
    """
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    places = [outcome.member.place for outcome in run.outcomes]
    for rank, outcome in enumerate(run.outcomes):
        for distance, rate in outcome.rates:
            source = places[(rank - distance) % len(places)]
            into[places[rank]] = max(into.get(places[rank], 0.0), rate)
            out[source] = max(out.get(source, 0.0), rate)
    return into, out


def of_numerics(facts: Facts) -> Iterator[Finding]:
    """Yield places whose results differ from most by more than rounding."""
    by_name: dict[str, dict[str, tuple[str, ...]]] = {}
    for run in facts.jobs:
        for outcome in run.outcomes:
            for name, values in outcome.numerics.items():
                by_name.setdefault(clean(name, 60), {})[outcome.member.place] = values
    slight: dict[str, list[str]] = {}
    for name, results in by_name.items():
        usual, times = Counter(results.values()).most_common(1)[0]
        for place, values in results.items():
            if values == usual:
                continue
            difference = _difference(values, usual)
            if difference is not None and difference <= TOLERANCE:
                slight.setdefault(place, []).append(f"{name} by {difference:.1e}")
                continue
            agreeing = [p for p, theirs in results.items() if theirs == usual]
            subject = place if times > 1 else f"one of {place} and {agreeing[0]}"
            yield Finding(
                "numerics-differ",
                "failure",
                f"{subject} computes {name} wrong: {_shown(values)} on {place}, {_shown(usual)} on "
                + nodesets.fold(agreeing),
                (place.partition(" ")[0],),
                next_steps=(Advice("test its memory and GPU: this is more than rounding"),),
            )
    for place, names in slight.items():
        yield Finding(
            "rounding-differs",
            "note",
            f"{place} rounds otherwise than most, as other hardware or libraries do: "
            f"{', '.join(names)} (relative)",
            (place.partition(" ")[0],),
        )


def _difference(values: Sequence[str], usual: Sequence[str]) -> float | None:
    """Return the greatest relative difference; None for other lengths, nan and inf."""
    try:
        pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(values, usual, strict=True)]
    except (ValueError, OverflowError):
        return None
    if not all(math.isfinite(number) for pair in pairs for number in pair):
        return None
    return max((abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs), default=0.0)


def _shown(values: Sequence[str]) -> str:
    try:
        return ", ".join(f"{float.fromhex(value):.9g}" for value in values[:3])
    except (ValueError, OverflowError):
        return clean(", ".join(values[:3]), 80)
