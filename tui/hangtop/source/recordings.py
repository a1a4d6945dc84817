"""The flight recorders of the shown job, analysed once per set of recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hangtop.terminal.later import Later
from hangtop_core.analysis.flight.countdown import Countdown, countdown
from hangtop_core.analysis.flight.groups import GroupLine, group_lines
from hangtop_core.analysis.flight.live import picture
from hangtop_core.analysis.flight.picture import Picture
from hangtop_core.analysis.flight.sequences import NumberLine, number_lines
from hangtop_core.analysis.flight.ways import cautions
from hangtop_core.model.snapshot import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hangtop_core.model.snapshot import Job, Rank

QUICK_RANKS = 64
"""Number of ranks up to which recorders are combined while a key waits: 10 ms of 2,000 entries
each.
"""
QUICK_ENTRIES = 10_000
"""Number of entries up to which a group's operations are counted while a key waits: 5 ms."""


class Seen(Struct, frozen=True):
    """The combined recorders of a job."""

    picture: Picture
    groups: tuple[GroupLine, ...]
    countdown: Countdown | None
    cautions: tuple[str, ...]
    """What the available recorders cannot show."""


class Recordings:
    """Combined recorders, of running ranks or of files, and the operations counted in them."""

    def __init__(self, ended: Callable[[], Any], fixed: Picture | None) -> None:
        """Create it; `fixed` holds the recorders of files, and running ranks are then not used."""
        self._fixed = fixed
        self._seen: Later[Seen | None] = Later(ended)
        self._numbers: Later[tuple[NumberLine, ...]] = Later(ended)
        self._job_key = ""

    @property
    def from_files(self) -> bool:
        """Whether files are shown instead of running ranks."""
        return self._fixed is not None

    def look(self, job: Job | None) -> Seen | None:
        """Return the combined recorders of a job; the previous ones while newer are combined."""
        fixed = self._fixed
        if fixed is not None:
            traces = fixed.world.traces
            return self._seen.get(
                _SameObject(fixed), lambda: _combine(fixed), lambda: len(traces) <= QUICK_RANKS
            )
        if job is None:
            return None
        ranks = job.ranks
        # The key holds the recorders, so that no identity is reused while it is compared.
        key = _SameRecorders([rank.recorder for rank in ranks], [rank.rank for rank in ranks])
        combined = self._seen.get(key, lambda: _of_ranks(ranks), lambda: len(ranks) <= QUICK_RANKS)
        is_current = combined is not None or job.key == self._job_key
        self._job_key = job.key if is_current else self._job_key
        return combined if combined is not None or not is_current else self._seen.newest

    @property
    def running(self) -> bool:
        """Whether recorders are being combined."""
        return self._seen.running

    @property
    def wrong(self) -> str:
        """The reason why recorders could not be combined; empty when they could."""
        return self._seen.wrong

    def numbers(self, recorded: Seen, group: GroupLine) -> tuple[NumberLine, ...] | None:
        """Return the operations of a group by sequence number; None while they are counted."""
        shown = recorded.picture
        return self._numbers.get(
            (_SameObject(shown), group.index),
            lambda: number_lines(shown.world, shown.waits, group.index),
            lambda: _entries(shown, group.index) <= QUICK_ENTRIES,
        )


def _entries(shown: Picture, index: int) -> int:
    """Return the number of entries in the rings of a group's members."""
    traces = (shown.world.traces.get(rank) for rank in shown.world.groups[index].by_rank)
    return sum(trace.length for trace in traces if trace is not None)


class _SameObject:
    """Compares equal to another of the identical object, which it keeps alive."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self._what is other._what

    __hash__ = None  # type: ignore[assignment]


class _SameRecorders:
    """Compares equal to another of the identical recorders of the same ranks."""

    def __init__(self, recorders: Sequence[object], ranks: Sequence[int]) -> None:
        self._recorders, self._ranks = recorders, ranks

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _SameRecorders)
            and self._ranks == other._ranks
            and all(
                mine is theirs
                for mine, theirs in zip(self._recorders, other._recorders, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]


def _of_ranks(ranks: Sequence[Rank]) -> Seen | None:
    combined = picture(ranks)
    return None if combined is None else _combine(combined)


def _combine(combined: Picture) -> Seen:
    groups = group_lines(combined.world, combined.waits)
    return Seen(combined, groups, countdown(combined.waits), tuple(_cautions(combined)))


def _cautions(combined: Picture) -> Iterator[str]:
    recorders = combined.diagnosis.flight.recorders
    texts = [recorder.cautions for recorder in recorders]
    if not recorders:
        texts = [cautions(Recorder(0.0, trace=trace)) for trace in combined.world.traces.values()]
    yield from dict.fromkeys(text for cautions_of_rank in texts for text in cautions_of_rank)
    for spot in combined.diagnosis.blind_spots:
        if spot.what != "flight recorder":
            yield f"{spot.what}: {spot.why}"
