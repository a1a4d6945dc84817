"""What rules work on and what they give: a rule, its hits, and the subjects of a case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.activity import Activity
from hangtop_core.analysis.standing import Standing
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.diagnosis import Culprit, Evidence, JobState
from hangtop_core.model.snapshot import Rank
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.commands import Step

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.case import Case

STALLED: frozenset[JobState] = frozenset({"hung", "unknown"})
"""States in which causes of hangs are looked for; in `unknown` they are suspects."""
AT_START: frozenset[JobState] = STALLED | {"starting"}
"""For causes that may keep ranks from meeting."""
START_OR_END: frozenset[JobState] = AT_START | {"exited"}
"""For causes that are also looked for once the job has ended."""
ALWAYS: frozenset[JobState] = frozenset({"hung", "unknown", "progressing"})
"""For causes that also explain a job which gets on slowly."""

LIKELY = 0.6
"""Confidence that a rank is slow which is busy, where nothing shows that it gets on."""


class Subject(Struct, frozen=True, gc=False):
    """One rank with all that is known of what it does."""

    rank: Rank
    activity: Activity
    standing: Standing

    @property
    def number(self) -> int:
        """Its global rank."""
        return self.rank.rank

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.activity.kind in COMMUNICATION

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.rank.process.pid


def besides(some: Iterable[Subject], left_out: Iterable[Subject]) -> list[Subject]:
    """Those of ``some`` that are not among ``left_out``: `in` would compare thousands with each."""
    ids = {id(s) for s in left_out}
    return [s for s in some if id(s) not in ids]


def alike(
    subjects: Iterable[Subject], key: Callable[[Subject], Hashable]
) -> Iterator[tuple[Subject, ...]]:
    """Subjects that are in the same trouble, the largest group first."""
    groups: dict[Hashable, list[Subject]] = defaultdict(list)
    for subject in subjects:
        groups[key(subject)].append(subject)
    for members in sorted(groups.values(), key=lambda one: (-len(one), one[0].number)):
        yield tuple(members)


class Hit(Struct, frozen=True):
    """What a rule found: the verdict but for what all verdicts have in common."""

    subjects: tuple[Subject, ...]
    """Ranks to blame. They are explained, and no later rule sees them."""
    summary: str
    """Cleaned by the engine, as all of them."""
    evidence: tuple[Evidence, ...] = ()
    """Who waits is not among it: the engine adds that to every verdict."""
    steps: tuple[Step, ...] = ()
    confidence: float | None = None
    """None: the rule's own."""
    absent: tuple[Culprit, ...] = ()
    """Ranks to blame that have no process."""
    explained: tuple[Subject, ...] = ()
    """Ranks that are explained by this without being to blame."""
    held_up: tuple[Subject, ...] = ()
    """Ranks that wait for what those to blame have: a lock, the other end of a pipe."""
    decisive: bool | None = None
    """None: the rule's own."""
    needs: tuple[More, ...] | None = None
    """None: the rule's own."""
    slow: bool = False
    """Whether steps pass, which these ranks make long: the job is slow, and nobody hangs."""
    late: float | None = None
    """When it came over ranks that had got nowhere for long by then: it is not why they do not."""


Finder = Callable[["Case", Sequence[Subject]], Iterable[Hit]]
"""Gets the case and the subjects nothing explains yet."""


@dataclass(frozen=True)
class Rule:
    """One cause: how it is recognised, and what it is documented as."""

    cause: str
    title: str
    seen: str
    """What must be seen."""
    excluded: str
    """What rules it out, or is looked at first."""
    confidence: float
    """Of a plain case; the engine lowers it where observation was short or partial."""
    next_steps: tuple[str, ...]
    """For the documentation; hits name the real pids and paths."""
    find: Finder
    states: frozenset[JobState] = STALLED
    decisive: bool = False
    """As soon as somebody has waited for a moment, this is a hang: no need to watch longer."""
    needs: tuple[More, ...] = ()
    """What would decide between this and the next explanation; asked of the first to blame."""
    complete: str = ""
    """Of a rule that needs nothing: why nothing more that can be asked for would tell."""
    last: bool = False
    """Asked only where no rule before it has found anything."""
