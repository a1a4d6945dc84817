"""Prints docs/causes.md from the rules: `python -m hangtop_core.analysis.verdict.document`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.patterns import PATTERNS
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.diagnosis import HANG_AFTER_S, STALLED_AFTER_S

if TYPE_CHECKING:
    from hangtop_core.analysis.flight.patterns import Pattern
    from hangtop_core.analysis.verdict.base import Rule

_HEAD = f"""# Causes

What `hangtop diagnose` can name, in the order in which it looks: what is cheap to see and decisive
comes first, and who is explained by one cause is not asked about the next. This page is generated
from the rules by `python -m hangtop_core.analysis.verdict.document`.

A job is *hung* when at least one rank waits for others, or is still starting, and nothing that
means progress has moved for {HANG_AFTER_S:.0f} seconds (`--hang-after`). Causes marked *at once*
need only {STALLED_AFTER_S:.0f} seconds. Before that, from a third of that time on, a stalled job
has suspects, with lower confidence. Who waits no longer than twice as long as several times lately,
and went on each time, is not stalled: the job is *slow* where few ranks make all others wait. A
hang stays one until somebody makes progress.

What would decide between a cause and the next is *asked for*, of one rank of those alike: at once
where that only reads, and C frames (native stacks), which pause a rank, only with `--allow-pause`.
Where nothing that can be asked for would tell more, the cause says why.

Confidence is that of a plain case: of the verdicts given with 0.9, nine in ten should be right.
"""

_RECORDERS = """## From flight recorders alone

What `hangtop flight` concludes from dumps; [flight.md](flight.md) says how. Confidence is lower
where the ranks are divided into equal halves, or where dumps are missing.
"""


def page() -> str:
    """The whole page, Markdown."""
    ways: dict[str, list[Rule]] = {}
    for rule in RULES:
        ways.setdefault(rule.cause, []).append(rule)
    parts = [_HEAD]
    for cause, rules in ways.items():
        parts.append(f"## `{cause}`\n")
        parts += [_section(rule) for rule in rules]
    parts.append(_RECORDERS)
    parts += [_pattern(pattern) for pattern in PATTERNS]
    return "\n".join(parts)


def _pattern(one: Pattern) -> str:
    steps = "\n".join(f"- {step}" for step in one.next_steps)
    return (
        f"### `{one.cause}`: {one.title[0].lower()}{one.title[1:]}\n\n"
        f"Confidence {one.confidence:.2f}.\n\n**Seen:** {one.seen}\n\n**What to do:**\n\n{steps}\n"
    )


def _section(rule: Rule) -> str:
    steps = "\n".join(f"- {step}" for step in rule.next_steps)
    when = ", at once" if rule.decisive else ""
    if rule.states == frozenset({"progressing"}) or rule.cause == "long-phase":
        when = ", not a hang"
    return (
        f"{rule.title}. Confidence {rule.confidence:.2f}{when}.\n\n"
        f"**Seen:** {rule.seen}\n\n**Ruled out by, or looked at first:** {rule.excluded}\n\n"
        f"{_asks(rule)}**What to do:**\n\n{steps}\n"
    )


def _asks(rule: Rule) -> str:
    told = "; ".join(f"{one.kind} ({one.why})" for one in rule.needs)
    return f"**Asks for:** {told or f'nothing more: {rule.complete}'}.\n\n"


if __name__ == "__main__":
    sys.stdout.write(page())
