"""Jobs with torch: who makes one fail, who is slow, whose numbers differ."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from hangtop_core.logs.meaning.known import recognise
from hangtop_core.logs.parsing.record import fill
from hangtop_core.nettest import blame
from hangtop_core.nettest.facts import SETTING, Finding
from hangtop_core.nettest.judge_links import settings
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, size
from hangtop_core.text.commands import Advice, Command, Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.nettest.blame import Blame
    from hangtop_core.nettest.facts import Facts, JobRun, Outcome
    from hangtop_core.text.commands import Step

SLOW = 0.5
_XIDS = ("nvidia-smi", "-q", Sign.THEN, "dmesg", Sign.PIPE, "grep", "-i", "xid")
"""A node below this share of the median is called slow."""
WAITED = 4.0
"""So many times faster than the slowest, a node was only slowed down by waiting for it."""
NOTABLE = 20e6
"""Bytes a second: below this share, times, are noise of a machine under load."""
TOLERANCE = 1e-5
"""Relative difference that 32-bit floating point may show where sums are ordered otherwise: some
hundred times its precision (2**-23) over the few hundred to 65,536 terms that are added up."""
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
    """What made a job fail, for each backend."""
    for backend in dict.fromkeys(run.backend for run in facts.jobs):
        runs = [run for run in facts.jobs if run.backend == backend]
        last = runs[-1]
        wrong = [one for run in runs for one in run.outcomes if one.wrong and one.step != "store"]
        if wrong:
            yield from _wrong(facts, runs, wrong)
        elif last.ok and len(runs) > 1:
            yield _wrong_interface(facts, runs[0], last)
        elif not last.ok:
            yield from _failed(facts, last)


def _wrong(facts: Facts, runs: Sequence[JobRun], wrong: Sequence[Outcome]) -> Iterator[Finding]:
    """Who makes numbers wrong: all see a wrong sum, so it is whom jobs of two that fail share."""
    backend = runs[-1].backend
    alone = list(_alone(facts, backend))
    yield from alone
    if alone:
        return
    tried, guilty = _narrowed(facts, backend)
    seen = {one.member.place: _named(runs[-1], one.error or "") for one in wrong}
    evidence = [f"{one.member.place}, {one.step}: {seen[one.member.place]}" for one in wrong[:5]]
    evidence += explained(facts)
    for one in guilty:
        yield Finding(
            "numbers-wrong",
            "failure",
            f"numbers come out wrong because of {_who(facts, one)}: {next(iter(seen.values()))}",
            tuple(dict.fromkeys(name.partition(" ")[0] for name in one.nodes)),
            one.pairs,
            (_counted(tried), *evidence),
            (LOOK_FOR_ERRORS, *_steps(facts, one.nodes)[:-1]),
        )
    if guilty:
        return
    nodes = tuple(dict.fromkeys(one.member.node for one in wrong))
    apart = [_again((node,), "by itself") for node in runs[-1].nodes if len(nodes) > 1]
    alike = {text: [p for p, its in seen.items() if its == text] for text in seen.values()}
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
    for one in guilty:
        yield Finding(
            cause,
            "failure",
            f"{of} fails because of {_who(facts, one)}: ranks do not {DOES.get(step, step)}",
            tuple(dict.fromkeys(name.partition(" ")[0] for name in one.nodes)),
            one.pairs,
            (_counted(tried), *errors, *explained(facts)),
            _steps(facts, one.nodes),
        )
    if guilty:
        return
    whom = _own_fault(run)
    cause = "job-failed" if whom else cause
    why = f" because of {whom[0]}" if len(whom) == 1 else ""
    evidence = [*errors, *explained(facts)]
    if tried:
        evidence.insert(0, f"{_counted(tried)}: only together they fail")
    yield Finding(
        cause,
        "failure",
        f"{of} fails{why}: ranks do not {DOES.get(step, step)}",
        tuple(whom) or run.nodes,
        evidence=tuple(evidence),
        next_steps=_steps(facts, tuple(whom) or run.nodes),
    )


def _narrowed(facts: Facts, backend: str) -> tuple[list[JobRun], list[Blame]]:
    """The jobs of two by a backend, and whom those that failed have in common."""
    tried = [one for one in facts.pair_jobs if one.backend == backend]
    tested = [(one.units[0], one.units[1]) for one in tried]
    failing = [(one.units[0], one.units[1]) for one in tried if not one.ok]
    both = [*tested, *((b, a) for a, b in tested)]
    return tried, blame.fold(both, [*failing, *((b, a) for a, b in failing)])


def _alone(facts: Facts, backend: str) -> Iterator[Finding]:
    """GPUs that fail by themselves."""
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
    """Nodes whose processes, or whose connections to here, ended: their own trouble."""
    return list(dict.fromkeys(one.member.node for one in run.outcomes if one.gone))


def _who(facts: Facts, one: Blame) -> str:
    if one.what == "pair":
        return f"the way between {facts.at(one.nodes[0])} and {facts.at(one.nodes[1])}"
    if one.what == "all":
        return "every pair"
    if one.what == "some":
        return f"{len(one.pairs) // 2} pairs, most of them with {facts.at(one.nodes[0])}"
    return facts.at(one.nodes[0])


def _counted(tried: Sequence[JobRun]) -> str:
    good = sum(run.ok for run in tried)
    what = "GPUs" if any(" " in name for name in tried[0].units) else "nodes"
    return f"jobs of two {what}: {good} of {len(tried)} work"


def _errors(run: JobRun) -> tuple[str, list[str]]:
    """The step in which most failed, and what they said, each text once."""
    bad = [one for one in run.outcomes if not one.ok]
    steps = Counter(one.step or "?" for one in bad)
    step = steps.most_common(1)[0][0] if steps else "?"
    told: dict[str, list[str]] = {}
    for one in bad:
        told.setdefault(_named(run, one.error or ""), []).append(one.member.place)
    return step, [f"{nodesets.fold(places)}: {text}" for text, places in list(told.items())[:4]]


def _named(run: JobRun, error: str) -> str:
    """An error, with the places of the ranks that it names: their numbers are of this job alone."""

    def place(found: re.Match[str]) -> str:
        rank = int(found[0])
        return (
            f"{rank} ({run.outcomes[rank].member.place})" if rank < len(run.outcomes) else found[0]
        )

    def places(found: re.Match[str]) -> str:
        return _NUMBER.sub(place, found[0])

    return clean(_RANKS.sub(places, clean(error, 200)), 300)


def explained(facts: Facts) -> list[str]:
    """What lines that torch and NCCL printed mean, where they are known, each once."""
    found: dict[str, None] = {}
    for node, lines in facts.lines.items():
        for line in lines:
            known = recognise(line)
            if known is not None and (known[0].part != "info" or known[0].cause):
                found[f"{node}: {clean(fill(known[0].means, known[1]), 200)}"] = None
    return list(found)[:6]


def _steps(facts: Facts, nodes: Iterable[str]) -> tuple[Step, ...]:
    rest = [node for node in facts.present if node not in set(nodes)]
    others = (_again(rest, "the others by themselves"),) if len(rest) > 1 else ()
    return (*others, _SAY_MORE)


def _again(nodes: Sequence[str], why: str) -> Command:
    return Command("", ("hangtop", "nettest", "-w", nodesets.fold(nodes)), why)


def of_rates(facts: Facts) -> Iterator[Finding]:
    """Nodes that receive or send much less than others, the slowest first.

    Those are left out that are many times faster than it: they have only waited for it.
    """
    for run in facts.jobs:
        in_pairs = _best_of_pairs(facts, run.backend)
        slow: list[tuple[float, float, str, str]] = []
        for told, alone, word in zip(rates(run), in_pairs, ("receives", "sends"), strict=True):
            slow += [
                (rate, usual, place, word)
                for place, (rate, usual) in _slow(told).items()
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


def _slow(told: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Places that are much slower than most, with their rate and what is usual."""
    usual = statistics.median(told.values()) if len(told) > 2 else 0.0
    return {
        place: (rate, usual)
        for place, rate in told.items()
        if rate < SLOW * usual and usual - rate > NOTABLE
    }


def _best_of_pairs(facts: Facts, backend: str) -> tuple[dict[str, float], dict[str, float]]:
    """What each place received and sent at best where every pair had a job of its own.

    With those, being slow once in a job of all is not enough: a busy machine may be that.
    """
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    for run in facts.pair_jobs:
        if run.backend == backend:
            for best, told in zip((into, out), rates(run), strict=True):
                best.update({place: max(best.get(place, 0.0), told[place]) for place in told})
    return into, out


def rates(run: JobRun) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes a second that each place of a job received and sent, at its best.

    A rank sends to and receives from others at several distances, so a neighbour that is slow
    does not make it look slow, too.
    """
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    places = [one.member.place for one in run.outcomes]
    for rank, one in enumerate(run.outcomes):
        for distance, rate in one.rates:
            source = places[(rank - distance) % len(places)]
            into[places[rank]] = max(into.get(places[rank], 0.0), rate)
            out[source] = max(out.get(source, 0.0), rate)
    return into, out


def of_numerics(facts: Facts) -> Iterator[Finding]:
    """Places that compute something else than most, by more than floating point explains."""
    by_name: dict[str, dict[str, tuple[str, ...]]] = {}
    for run in facts.jobs:
        for one in run.outcomes:
            for name, values in one.numerics.items():
                by_name.setdefault(clean(name, 60), {})[one.member.place] = values
    slight: dict[str, list[str]] = {}
    for name, told in by_name.items():
        usual, times = Counter(told.values()).most_common(1)[0]
        for place, values in told.items():
            if values == usual:
                continue
            difference = _difference(values, usual)
            if difference is not None and difference <= TOLERANCE:
                slight.setdefault(place, []).append(f"{name} by {difference:.1e}")
                continue
            others = [other for other, theirs in told.items() if theirs == usual]
            whose = place if times > 1 else f"one of {place} and {others[0]}"
            yield Finding(
                "numerics-differ",
                "failure",
                f"{whose} computes {name} wrong: {_shown(values)} on {place}, {_shown(usual)} on "
                + nodesets.fold(others),
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


def _difference(some: Sequence[str], usual: Sequence[str]) -> float | None:
    """The greatest relative difference; None where it is none: another length, nan, inf."""
    try:
        pairs = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(some, usual, strict=True)]
    except (ValueError, OverflowError):
        return None
    if not all(math.isfinite(one) for pair in pairs for one in pair):
        return None
    return max((abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs), default=0.0)


def _shown(values: Sequence[str]) -> str:
    try:
        return ", ".join(f"{float.fromhex(one):.9g}" for one in values[:3])
    except (ValueError, OverflowError):
        return clean(", ".join(values[:3]), 80)
