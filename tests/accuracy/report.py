"""The outcome of a run as text: who was right, what was taken for what, how sure it was."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.demo.gallery import GALLERY
from hangtop_core.analysis.verdict.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accuracy.run import Outcome

BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.01)
NOT_HUNG = "(not hung)"


def table(outcomes: Sequence[Outcome]) -> str:
    """Expected cause against given cause, and how often the culprits were right with it."""
    cells: Counter[tuple[str, str]] = Counter()
    blamed: Counter[tuple[str, str]] = Counter()
    for one in outcomes:
        if one.skipped:
            continue
        given = "(no answer)" if one.error else one.cause or NOT_HUNG
        cell = (one.cause if one.cause and one.cause_right else _first(one.job.cause), given)
        cells[cell] += 1
        blamed[cell] += one.right
    rows = [
        f"| {expected} | {given} | {count} | {blamed[expected, given]} |"
        for (expected, given), count in sorted(cells.items())
    ]
    head = "| Expected | Given | Jobs | Culprits right, too |"
    return "\n".join([head, "|---|---|---:|---:|", *rows, ""])


def calibration(outcomes: Sequence[Outcome]) -> str:
    """Of the first verdicts given with some confidence, how many were right."""
    rows = ["| Confidence | Verdicts | Right | Share |", "|---|---:|---:|---:|"]
    given = [one for one in outcomes if one.cause is not None and not one.error]
    for low, high in itertools.pairwise(BINS):
        some = [one for one in given if low <= one.confidence < high]
        if some:
            right = sum(one.right for one in some)
            name = f"{low:.2f} to {min(high, 1.0):.2f}"
            rows.append(f"| {name} | {len(some)} | {right} | {right / len(some):.0%} |")
    return "\n".join([*rows, ""])


def summary(outcomes: Sequence[Outcome]) -> str:
    """The figures that count, in sentences: of all jobs, and of those kept out."""
    kept = [one for one in outcomes if one.job.kept]
    told = f"\nOf those that were kept out while the rules were written, now: {_figures(kept)}"
    return _figures(outcomes) + (told + _first_runs(kept) if kept else "")


def _first_runs(kept: Sequence[Outcome]) -> str:
    """How those that were kept out were told before the rules knew of any of them."""
    hung = [one.job for one in kept if one.job.cause is not None]
    healthy = [one.job for one in kept if one.job.cause is None]
    right = sum(not job.missed for job in hung)
    return (
        f"When they were first run, before rules were mended for what they showed: {right} of "
        f"{len(hung)}, and {sum(job.missed for job in healthy)} false alarms of {len(healthy)}.\n"
    )


def _figures(outcomes: Sequence[Outcome]) -> str:
    judged = [one for one in outcomes if not one.skipped]
    hung = [one for one in judged if one.job.cause is not None]
    healthy = [one for one in judged if one.job.cause is None]
    alarms = sum(not one.error and one.cause is not None for one in healthy)
    return (
        f"{len(judged)} jobs, {len(hung)} that hang or fail and {len(healthy)} that do not. "
        f"First verdict right in cause and culprits: {sum(one.right for one in hung)} of "
        f"{len(hung)}; in cause alone: {sum(one.cause_right for one in hung)}. "
        f"False alarms: {alarms}. Not judged: {len(outcomes) - len(judged)}.\n"
    )


def coverage(outcomes: Sequence[Outcome]) -> str:
    """By which jobs each cause is made, here and in the demo; and which are not."""
    jobs: dict[str, list[str]] = {}
    for one in outcomes:
        jobs.setdefault(_first(one.job.cause), []).append(one.job.name)
    for scenario in GALLERY:
        jobs.setdefault(scenario.cause or NOT_HUNG, []).append(f"demo {scenario.name}")
    rows = ["| Cause | Jobs |", "|---|---|"]
    rows += [f"| {cause} | {', '.join(names)} |" for cause, names in sorted(jobs.items())]
    lacking = sorted({rule.cause for rule in RULES} - jobs.keys() - {"unknown"})
    return "\n".join([*rows, "", "Made by none of them: " + ", ".join(lacking) + ".", ""])


def document(outcomes: Sequence[Outcome]) -> str:
    """The page that is kept."""
    jobs = [
        "| Subject | Job | From | What happens | Expected | Given | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(outcomes, key=lambda one: (one.job.subject, one.job.name)):
        given = "(no answer)" if one.error else _said(one.cause, one.culprits)
        mark = "not made here" if one.skipped else "right" if one.right else "**wrong**"
        expected = _said(one.job.cause, one.job.culprits)
        job = one.job
        origin = job.origin or "rules"
        names = f"{job.subject.replace('_', ' ')} | {job.name} | {origin}"
        jobs.append(f"| {names} | {job.what} | {expected} | {given} | {mark} |")
    return "\n".join(
        [
            "# Accuracy",
            "",
            "How often the first verdict is right, on jobs that really hang or fail, and on jobs",
            "that do not. Generated by `make accuracy`, which runs them all; the jobs are in",
            "`tests/accuracy/`, written apart from the rules and from the demo's scenarios, which",
            "`make test` runs.",
            "",
            summary(outcomes),
            "## What was taken for what",
            "",
            table(outcomes),
            "## How sure it was",
            "",
            "A confidence of 0.9 should be right nine times in ten.",
            "",
            calibration(outcomes),
            "## The causes",
            "",
            coverage(outcomes),
            "## The jobs",
            "",
            *jobs,
            "",
            (Path(__file__).parent / "history.md").read_text().rstrip(),
            "",
        ]
    )


def _first(cause: str | None) -> str:
    """The first of the causes that are equally right."""
    return cause.partition("|")[0] if cause else NOT_HUNG


def _said(cause: str | None, culprits: Sequence[int]) -> str:
    if cause is None:
        return "not hung"
    causes = " or ".join(f"`{one}`" for one in cause.split("|"))
    return f"{causes} {', '.join(map(str, culprits))}".strip()
