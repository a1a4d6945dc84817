"""Ranks that shut down, and wait for something in that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.endings import awaited
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.logfacts import error_text
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.raised import also
from hangtop_core.analysis.verdict.sentences import sentence, several, who
from hangtop_core.analysis.verdict.steps import dump_step, on, strace_step, tails
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case

WAITS_FOR_ENDS = frozenset({"_shutdown", "_exit_function", "_python_exit"})
"""What Python calls at the end of a program, and waits in for threads and children."""


def _teardown(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    leaving = [s for s in left if s.activity.kind == "teardown"]
    for group in alike(leaving, lambda s: (s.activity.text, s.activity.op)):
        ends = awaited(case, group[0]) if group[0].activity.op in WAITS_FOR_ENDS else ""
        ends = f"({ends})" if ends and len(group) == 1 else ""
        left_by = also(case, group)
        error = error_text(case, group[0].number) if len(group) == 1 and not left_by else ""
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                several(group[0].activity.text, group),
                case.since(group[0]),
                f"{ends}; it has printed {error}" if error else ends,
                f"({left_by[0].lower()}{left_by[1:]})" if left_by else "",
            ),
            evidence=common_facts(case, group),
            steps=(
                Advice("read the first traceback in its log: it may be leaving after an error"),
                *(on(group[0], *text) for text in tails(group[0].rank)),
                dump_step(group[0], "--each"),
                strace_step(group[0], group[0].pid),
            ),
            confidence=None if case.waiters else 0.6,
            # Who waits for threads or children of its own is not in C code that would tell.
            needs=TEARDOWN.needs[:1] if group[0].activity.op in WAITS_FOR_ENDS else None,
        )


TEARDOWN = Rule(
    cause="teardown",
    title="A rank is shutting down",
    seen="destroy_process_group or interpreter shutdown in the stack; or a function that was "
    "registered with atexit waits: nothing of the program is below it.",
    excluded="None.",
    confidence=0.8,
    next_steps=("Read the first traceback in its log",),
    find=_teardown,
    needs=(
        More("logs", "after which error it leaves"),
        More("native stacks", "which C function it waits in"),
    ),
)
