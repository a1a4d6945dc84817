"""Ranks that compile while others wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.naming import name_process
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case

WAITED_S = 2.0
"""Seconds for which others have waited for who compiles, of which it is worth to speak: where each
step compiles anew, each of them is short."""
_COMPILERS = frozenset(
    {"ptxas", "cicc", "cc1plus", "cc1", "gcc", "g++", "ninja", "nvcc", "clang", "clang++", "c++"}
)


def _waits_for_compiler(subject: Subject) -> bool:
    """Whether it waits for a compiler that it has started, or what it has started."""
    children = subject.rank.children if subject.activity.kind == "child" else ()
    return any(c.comm in _COMPILERS and not c.ended for c in children)


def _compiling(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    at_work = [s for s in left if s.activity.kind == "compiling" or _waits_for_compiler(s)]
    if case.progress.state == "progressing" and case.waited_s < WAITED_S:
        return
    for group in alike(at_work, lambda s: s.activity.op):
        busy = [c for s in group for c in s.rank.children if c.comm in _COMPILERS]
        told = f": {name_process(busy[0])}" if busy else ""
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"compiling at {group[0].activity.at} {case.since(group[0])}".rstrip() + told,
            ),
            evidence=common_facts(case, group),
            steps=(
                Advice(
                    "wait, or compile before training; keep the cache on a local disk "
                    "(TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR)"
                ),
            ),
        )


COMPILING = Rule(
    cause="compiling",
    title="A rank is compiling",
    seen="torch.compile, Triton or a C++ extension build in the stack; or it waits for a program "
    "that it started, and a compiler is among those.",
    excluded="It waits for a lock file: `file-lock`.",
    confidence=0.8,
    next_steps=("Wait, or compile before training",),
    find=_compiling,
    states=ALWAYS,
    complete="its stack and its children say what is compiled and by whom; how long it takes, "
    "nothing",
)
