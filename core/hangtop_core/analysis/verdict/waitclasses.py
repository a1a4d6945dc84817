"""Those who wait for other ranks, by what they wait in."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Subject
from hangtop_core.analysis.verdict.callers import by_callers
from hangtop_core.analysis.verdict.naming import wait_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Snapshot

Classes = tuple[tuple[str, tuple[Subject, ...]], ...]
"""What is waited in, in words, and by whom."""
MAX_CLASSES = 4
"""So many classes of ranks that wait apart are compared with one another."""


def classes(snapshot: Snapshot, waiters: Sequence[Subject]) -> Classes:
    """Waiters by what they wait in, where, and who called that, the largest class first."""
    alike: dict[str, list[Subject]] = defaultdict(list)
    for subject in waiters:
        alike[wait_text(subject.activity)].append(subject)
    groups: dict[str, list[Subject]] = {}
    for text, some in alike.items():
        ways = by_callers(snapshot.stacks, some) if _calls(some) else {"": some}
        groups.update({text + caller: members for caller, members in ways.items()})
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].number))
    return tuple((text, tuple(members)) for text, members in ordered)


def by_place(some: Classes) -> Classes:
    """The same, where those are one class that came to one place by several callers."""
    places: dict[str, list[tuple[str, tuple[Subject, ...]]]] = defaultdict(list)
    for text, members in some:
        places[wait_text(members[0].activity)].append((text, members))
    found = [
        one[0] if len(one) == 1 else (place, tuple(s for _, part in one for s in part))
        for place, one in places.items()
    ]
    return tuple(sorted(found, key=lambda one: -len(one[1])))


def _calls(alike: Sequence[Subject]) -> bool:
    """Whether subjects that wait alike wait in a collective that they called themselves."""
    kind, by_thread = alike[0].activity.kind, alike[0].activity.by_thread
    return len(alike) > 1 and kind in ("collective", "new-group") and not by_thread
