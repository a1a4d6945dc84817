"""Results of a network test as text, as JSON, and as a command line for mpirun."""

from __future__ import annotations

import ipaddress
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

import hangtop_probe
from hangtop_core.nettest.judge_clocks import clocks
from hangtop_core.nettest.judge_jobs import rates
from hangtop_core.report.diagnosis import wrap
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, plural, shorten, size
from hangtop_core.text.commands import spelt_or_why, texts
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.nettest.facts import Facts, Finding, JobRun

_PATH = re.compile(r"[A-Za-z0-9_./+-]{1,300}")
"""Path of a Python, as a node reports it: it gets into a command."""
SCHEMA = "hangtop.nettest/1"
PROGRAM = Path(hangtop_probe.__file__).parents[1] / "hangtop_probe/nettest/nettest_rank.py"
_MIN_WIDTH = 50
_LABEL = 12
_HEAD = {0: "PASSED", 3: "FAILED", 4: "INCOMPLETE", 130: "INTERRUPTED"}


def text(facts: Facts, results: Sequence[Finding], status: int, width: int) -> str:
    """Return the whole report, wrapped to a width in characters."""
    width = max(width, _MIN_WIDTH)
    lines = wrap(f"{_HEAD[status]}: {headline(facts, results, status)}", width)
    for result in results:
        lines += ["", *finding_lines(result, width)]
    lines += ["", "What was tested", *_tested(facts, width)]
    return "\n".join(lines) + "\n"


def headline(facts: Facts, results: Sequence[Finding], status: int) -> str:
    """Return the test in one line: the nodes, and the worst finding."""
    nodes = f"{plural(len(facts.nodes), 'node')} {shorten(nodesets.fold(facts.nodes), 60)}"
    failures = [result for result in results if result.level == "failure"]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return f"{nodes}: {clean(failures[0].summary, 400)}{more}"
    if status == 0:
        job = "torch works between them" if len(facts.present) > 1 else "torch works"
        warned = [result.summary for result in results if result.level == "warning"]
        but = f", but {clean(warned[0], 300)}" if warned else ""
        return f"{nodes}: {job if facts.jobs else 'every way that was tried works'}{but}"
    return f"{nodes}: not all of it could be tested"


def finding_lines(finding: Finding, width: int) -> Iterator[str]:
    """Yield one finding in the layout of verdicts."""
    yield f"{finding.level.capitalize()}: {finding.cause}"
    yield from wrap(clean(finding.summary, 600), width, "  ")
    if finding.evidence:
        yield "  Evidence"
        for fact in finding.evidence:
            yield from wrap(clean(fact, 600), width, "    - ", "      ")
    if finding.next_steps:
        yield "  What to do"
        for step in texts(finding.next_steps):
            yield from wrap(clean(step, 600), width, "    - ", "      ")


def _tested(facts: Facts, width: int) -> Iterator[str]:
    yield from _row("interfaces", _interfaces(facts), width)
    if facts.names:
        yield from _row("names", _names(facts), width)
    if len(facts.clocks) > 1:
        yield from _row("clocks", clocks(facts), width)
    for kind, label in (("chosen", f"port {facts.port}"), ("any", "other ports")):
        connections = [connection for connection in facts.ways if connection.kind == kind]
        if connections:
            yield from _row(label, _connections(facts, kind), width)
    if facts.opened:
        seconds = f"{max(facts.listened_s, 0.1):.1f} s"
        strangers = sum(facts.strangers.values())
        cut = f"; {plural(strangers, 'caller')} without the token cut off" if strangers else ""
        duration = f"open for {seconds}, on these addresses only, closed again{cut}"
        yield from _row("", duration, width)
    for run in facts.jobs:
        yield from _row(f"job, {run.backend}", _job(facts, run), width)
    if facts.pair_jobs:
        for line in _pairs(facts):
            yield from _row("pairs", line, width)
    for node, why in facts.left_out.items():
        yield from _row("left out", f"{node} of the job: {why}", width)
    yield from _row("took", f"{facts.took_s:.1f} s", width)


def _interfaces(facts: Facts) -> str:
    by_name: dict[str, list[str]] = {}
    for node, spot in facts.spots.items():
        by_name.setdefault(
            f"{clean(spot.interface)} ({clean(spot.kind)}, MTU {spot.mtu})", []
        ).append(node)
    parts = [
        f"{name} of {nodesets.fold(nodes)}, {_folded([facts.spots[n].address for n in nodes])}"
        for name, nodes in by_name.items()
    ]
    unused: dict[str, list[str]] = {}
    for node, look in facts.looked.items():
        used = facts.spots[node].interface if node in facts.spots else None
        for link in look.links:
            if link.name != used and link.up and link.addresses:
                name = f"{clean(link.name)} ({clean(link.kind)})"
                unused.setdefault(name, []).append(node)
    if unused:
        count = len(facts.looked)
        parts.append(
            "not used: "
            + ", ".join(
                name if len(nodes) == count else f"{name} of {nodesets.fold(nodes)}"
                for name, nodes in sorted(unused.items())
            )
        )
    return "; ".join(parts) or "none"


def _folded(addresses: Sequence[str]) -> str:
    return addresses[0] if len(addresses) == 1 else shorten(", ".join(addresses), 60)


def _names(facts: Facts) -> str:
    answers = [answer for table in facts.names.values() for answer in table.names.values()]
    good = sum(not isinstance(answer, str) for answer in answers)
    back = [name for table in facts.names.values() for name in table.reverse.values()]
    return (
        f"{good} of {plural(len(answers), 'look-up')} of names have an answer, "
        f"{sum(name is not None for name in back)} of {len(back)} of addresses"
    )


def _connections(facts: Facts, kind: str) -> str:
    connections = [connection for connection in facts.ways if connection.kind == kind]
    good = [connection.took for connection in connections if connection.ok]
    took = f", {statistics.median(good) * 1000:.1f} ms each" if good else ""
    return f"{len(good)} of {plural(len(connections), 'way')} between nodes work{took}"


def _job(facts: Facts, run: JobRun) -> str:
    versions = Counter(facts.torch[node].torch for node in run.nodes if node in facts.torch)
    torch = ", ".join(f"torch {clean(version or '?')}" for version in versions)
    setting = " with the interface named" if run.forced else ""
    subject = f"{plural(len(run.outcomes), 'rank')} on {nodesets.fold(run.nodes)}{setting}, {torch}"
    if not run.ok:
        bad = [outcome for outcome in run.outcomes if not outcome.ok]
        return f"{subject}: {len(bad)} failed, at {bad[0].step}"
    into, _ = rates(run)
    rate = ""
    if into:
        low = min(into, key=lambda place: into[place])
        usual = size(statistics.median(into.values()))
        rate = f"; each receives {usual}/s (median), {low} {size(into[low])}/s (least)"
    return f"{subject}: sums are right{rate}"


def _pairs(facts: Facts) -> Iterator[str]:
    for run in facts.pair_jobs:
        into, _ = rates(run)
        names = " - ".join(run.units)
        if not run.ok:
            step = next(outcome.step for outcome in run.outcomes if not outcome.ok)
            yield f"{names}: fails at {step}"
        elif into:
            yield f"{names}: {' and '.join(f'{size(rate)}/s' for rate in into.values())}"


def _row(label: str, text: str, width: int) -> list[str]:
    head = f"  {label:<{_LABEL}} "
    return wrap(clean(text, 1000), width, head, " " * len(head))


def document(facts: Facts, results: Sequence[Finding], status: int) -> dict[str, Any]:
    """Return all results for programs (schema `hangtop.nettest/1`, docs/nettest.md)."""
    return {
        "schema": SCHEMA,
        "hangtop": __version__,
        "at": round(time.time(), 3),
        "ok": status == 0,
        "exit_status": status,
        "port": facts.port,
        "took_s": round(facts.took_s, 3),
        "interrupted": facts.interrupted,
        "findings": [
            {**structs.asdict(result), "next_steps": texts(result.next_steps)} for result in results
        ],
        "nodes": [_node(facts, node) for node in facts.nodes],
        "ways": facts.ways,
        "jobs": facts.jobs,
        "pairs": facts.pair_jobs,
        "alone": facts.alone,
    }


def _node(facts: Facts, node: str) -> dict[str, Any]:
    table, look = facts.names.get(node), facts.looked.get(node)
    return {
        "node": node,
        "missing": facts.missing.get(node),
        "failed": facts.failed.get(node),
        "hostname": look.hostname if look is not None else None,
        "tested_at": facts.spots.get(node),
        "interfaces": look.links if look is not None else (),
        "default_interface": look.default if look is not None else None,
        "clock": facts.clocks.get(node),
        "settings": look.settings if look is not None else {},
        "names": table.names if table is not None else {},
        "reverse": table.reverse if table is not None else {},
        "sources": table.sources if table is not None else {},
        "ports": facts.opened.get(node, ()),
        "strangers": facts.strangers.get(node, 0),
        "torch": facts.torch.get(node),
        "no_torch": facts.no_torch.get(node),
        "left_out_of_jobs": facts.left_out.get(node),
    }


def mpirun_line(facts: Facts, python: str | None) -> str:
    """Return a command that runs the same job by mpirun: with the options of Open MPI or others.

    The program has to be at the same path on all nodes: on a shared file system, or copied there.
    """
    nodes = [node for node in facts.present if node in facts.spots]
    host = nodes[0]
    looked = facts.looked[host].pythons
    usable = (
        tried.path for tried in looked if tried.torch is not None and _PATH.fullmatch(tried.path)
    )
    interpreter = python or next(usable, "python3")
    names = {facts.spots[node].interface for node in nodes}
    environ = ["-x", f"GLOO_SOCKET_IFNAME={names.pop()}"] if len(names) == 1 else []
    # Open MPI may choose an interface without a route, for its daemons and its messages.
    spot = facts.spots[host]
    network = str(ipaddress.ip_network(f"{spot.address}/{spot.length}", strict=False))
    tcp = [f"{part}_tcp_if_include" for part in ("oob", "btl")]
    argv = [
        "mpirun",
        *("-np", str(len(nodes)), "--host", ",".join(f"{node}:1" for node in nodes)),
        *("--map-by", "node"),
        *(word for option in tcp for word in ("--mca", option, network)),
        *environ,
        *(interpreter, str(PROGRAM), facts.spots[host].address, str(facts.port)),
    ]
    return spelt_or_why(argv)
