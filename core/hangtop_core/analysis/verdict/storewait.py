"""A rank that waits for a key in the store by code of its own, while others are in a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.sourcelines import STORE_ANSWER
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.callers import calls, line_of, stack_of
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import trace_steps
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.stacks.kinds import Kind

_COLLECTIVE: frozenset[Kind] = frozenset({"collective", "backward", "work-wait"})


def alone_with_keys(case: Case) -> tuple[Subject, ...]:
    """The few that wait for keys in lines of the program's own, all others being in collectives."""
    if case.suspects or case.by_recorders is not None:
        return ()
    keys = tuple(s for s in case.waiters if _waits_for_key(s))
    others = besides(case.waiters, keys)
    if len(keys) >= len(others):
        return ()
    return keys if all(s.activity.kind in _COLLECTIVE for s in others) else ()


def _alone(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    keys = alone_with_keys(case)
    others = besides(case.waiters, keys)
    for group in alike(keys, lambda s: s.activity.site):
        activity = group[0].activity
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'waits', 'wait')} for a key in the store at "
                f"{activity.at} {case.since(group[0])}, and not in what {name_ranks(others)} "
                f"{is_are(others, 'waits', 'wait')} for: nobody else waits for keys, and who is to "
                f"set it may be among those that wait{_after_error(case, group[0])}",
                blamed=keys,
            ),
            evidence=common_facts(case, group),
            steps=(
                Advice(
                    f"look what led to {activity.at} on {name_ranks(group)} only, such as an error "
                    "that was caught, and who sets that key"
                ),
                *trace_steps(group[0]),
            ),
        )


def _after_error(case: Case, subject: Subject) -> str:
    """`; it came there in `except ValueError:` (train.py:7)`, where one of its calls stands so."""
    for frame in calls(stack_of(case.snapshot.stacks, subject)):
        for block in reversed(frame.beside or ()):
            if block[1].startswith("except"):
                at = line_of(frame, block)
                return f"; {name_ranks([subject])} came there in `{block[1]}` ({at})"
    return ""


def _waits_for_key(subject: Subject) -> bool:
    """Whether the innermost frame of a rank is the program's own, and asks the store."""
    activity = subject.activity
    own = activity.top is not None and activity.top == activity.site
    asks = activity.kind == "store" and activity.text != STORE_ANSWER
    return asks and own and not activity.by_thread


STORE_ALONE = Rule(
    cause="missing-collective",
    title="A rank waits for a key in the store, and others in a collective",
    seen="Fewer than half of the ranks wait for keys in the store in lines of the program's own, "
    "and all others in collectives.",
    excluded="A rank is outside communication. The recorders of all ranks tell more.",
    confidence=0.85,
    next_steps=("Look what led to the wait for the key on that rank only",),
    find=_alone,
    needs=(More("recorder", "whether it has issued what the others wait for"),),
)
