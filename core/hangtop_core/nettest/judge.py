"""From the results of a test to findings, the worst first: pure, so that it can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.attach.ways import large_packets
from hangtop_core.nettest.facts import Finding
from hangtop_core.nettest.judge_clocks import of_clocks
from hangtop_core.nettest.judge_jobs import of_jobs, of_numerics, of_rates
from hangtop_core.nettest.judge_links import of_links, of_names, of_settings
from hangtop_core.nettest.judge_ports import of_ports, of_taken_ports
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from hangtop_core.nettest.facts import Facts

PASSED, FAILED, INCOMPLETE = 0, 3, 4
INTERRUPTED = 130
_ORDER = ("failure", "warning", "note")


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, failures first; equal levels in the order of a job's steps."""
    results = [
        *_of_missing(facts),
        *of_ports(facts),
        *of_taken_ports(facts),
        *of_names(facts),
        *of_links(facts),
        *of_settings(facts),
        *of_clocks(facts),
        *of_jobs(facts),
        *of_rates(facts),
        *of_numerics(facts),
        *_of_torch(facts),
    ]
    return tuple(sorted(results, key=lambda result: _ORDER.index(result.level)))


def status(facts: Facts, results: tuple[Finding, ...], wants_job: bool) -> int:
    """Return the exit status: 0 passed, 3 failure, 4 not fully tested, 130 Ctrl-C."""
    if facts.interrupted:
        return INTERRUPTED
    if any(result.level == "failure" for result in results if result.cause != "node-unreachable"):
        return FAILED
    lacking = facts.missing or facts.failed or (wants_job and (facts.no_torch or not facts.jobs))
    return INCOMPLETE if lacking else PASSED


def _of_missing(facts: Facts) -> list[Finding]:
    by_reason: dict[str, list[str]] = {}
    for node, why in {**facts.missing, **facts.failed}.items():
        by_reason.setdefault(why, []).append(node)
    return [_missing(why, tuple(nodes)) for why, nodes in by_reason.items()]


def _missing(why: str, nodes: tuple[str, ...]) -> Finding:
    """Return the finding on untested nodes; lost large packets are a finding of their own."""
    summary = f"{', '.join(nodes)} could not be tested: {why}"
    if large_packets.TO in why or large_packets.FROM in why:
        steps = (large_packets.fix(nodes[0]),)
        return Finding("mtu-mismatch", "failure", summary, nodes, next_steps=steps)
    step = Advice("`hangtop doctor` with the same nodes says how far one gets, and the fix")
    return Finding("node-unreachable", "failure", summary, nodes, next_steps=(step,))


def _of_torch(facts: Facts) -> list[Finding]:
    by_reason: dict[str, list[str]] = {}
    for node, why in facts.no_torch.items():
        by_reason.setdefault(why, []).append(node)
    return [
        Finding(
            "no-torch",
            "warning",
            f"no job ran on {', '.join(nodes)}: {why}",
            tuple(nodes),
            next_steps=(
                Advice(
                    "--python PATH names the Python with torch, --init 'COMMAND' makes it the "
                    "first on PATH"
                ),
            ),
        )
        for why, nodes in by_reason.items()
    ]
