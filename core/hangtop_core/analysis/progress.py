"""Hung or slow: whether a job gets on, and since when it does not."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.attempts import in_vain
from hangtop_core.analysis.atwork import computes, tries
from hangtop_core.analysis.endless import in_loops
from hangtop_core.analysis.recurrence import allowed_s
from hangtop_core.analysis.serving import ENDS
from hangtop_core.analysis.standing import GONE, Standing, Watcher
from hangtop_core.analysis.waiters import Waiters
from hangtop_core.diagnosis import HANG_AFTER_S, STALLED_AFTER_S, JobState
from hangtop_core.model.node.states import UNSEEN
from hangtop_core.scheduling.ui_priority import SCREENS
from hangtop_core.stacks.kinds import COMMUNICATION, START_UP, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Job, Rank, Snapshot

PATIENCE = 10
"""How many times as long a rank may take that computes outside of Python: a native call that has
let go of the GIL (linear algebra, a compiler, a tokenizer) shows nothing until it returns. Likewise
one in a loop without an end of its own, as long as its functions change."""
BUSY_NODE_S = 20.0
"""Seconds for which what a rank did last is believed: a node with far too much to do is read as
seldom as that, and that it says nothing meanwhile does not mean that its ranks stand still."""

_COMPUTES: frozenset[Kind] = frozenset({"busy", "data"})
"""What a rank may do that computes, or has a worker do so."""
_HISTORY = attrgetter("waits"), attrgetter("given"), attrgetter("child_given")
_AT_WORK: frozenset[Kind] = frozenset(
    {"busy", "sleep", "compiling", "checkpoint", "importing", "inline-data", "unknown", "waiting"}
)
"""What a rank may do for long without anybody being stuck, as long as nobody waits for it."""


class Progress(Struct, frozen=True):
    """Whether a job gets on."""

    state: JobState
    since: float | None
    """When the last of its ranks last got anywhere."""
    stalled_for_s: float | None
    """For how long none of its ranks was seen to get anywhere."""
    ranks: tuple[Standing, ...]
    """In the order of `Job.ranks`."""


def judge(
    snapshot: Snapshot,
    job: Job,
    activities: Sequence[Activity],
    reader: Reader,
    hang_after: float = HANG_AFTER_S,
) -> Progress:
    """Say how a job gets on, without regard to causes.

    Args:
        snapshot: gives the time, and since when the job has been watched.
        job: whose ranks.
        activities: one for each rank of the job.
        reader: reads the activities of children.
        hang_after: seconds without progress after which waiting is called a hang.
    """
    watcher = Watcher(snapshot, job, reader)
    if not job.ranks:
        return _without_ranks(snapshot, job, reader, watcher, hang_after)
    pairs = zip(SCREENS.between(job.ranks), activities, strict=True)
    standings = tuple(watcher.rank(rank, activity) for rank, activity in pairs)
    patience = hang_after * PATIENCE
    standings = in_loops(reader, job.ranks, activities, standings, hang_after, patience)
    standings = in_vain(snapshot, job, activities, standings)
    alive = [i for i, activity in enumerate(activities) if activity.kind not in GONE]
    if not alive:
        return Progress("exited", None, None, standings)
    lost = {node.name for node in snapshot.nodes if node.state in UNSEEN}
    alive = [i for i in alive if job.ranks[i].node not in lost] or alive
    living = standings if len(alive) == len(standings) else [standings[i] for i in alive]
    since = max([one.since for one in living])
    stalled = max(min([max(one.seen, one.until) - one.since for one in living]), 0.0)
    still = max(min([one.until - one.since for one in living]), 0.0)
    kinds = {activities[i].kind for i in alive}
    if kinds == {"store"} and any(activities[i].family == "sleep" for i in alive):
        kinds = {"sleep"}  # all look again and again for what may come from outside
    asleep = [i for i in alive if activities[i].kind == "sleep"]
    alone = kinds == {"sleep"} or bool(kinds & COMMUNICATION)
    if asleep and not alone and all(tries(job.ranks[i], reader) for i in asleep):
        kinds = kinds - {"sleep"}  # they wait for what others have, as those that are blocked
    loading = "data" in kinds and any(watcher.loads(job.ranks[i], activities[i]) for i in alive)
    waits = bool(kinds & COMMUNICATION) or not (kinds & _AT_WORK or loading)
    if kinds == {"sleep"} and any(one.process.exit_code for one in job.ranks):
        waits = True  # for what another will never do: they only look for it again and again
    known = waits and any(any(map(one, job.ranks)) for one in _HISTORY)
    before = [(job.ranks[i], activities[i], standings[i]) for i in alive] if known else []
    if waits and still >= hang_after and (still >= patience or not _recurs(before, regular=True)):
        works = kinds & _COMPUTES and _compute(watcher, job.ranks, activities, alive)
        if not (works or _only_serves(reader, job.ranks, activities, alive)) or still >= patience:
            return Progress("hung", since, stalled, standings)
    if kinds <= START_UP:
        return Progress("starting", since, stalled, standings)
    # Where nobody waits for anybody, running is all there is to see.
    lately = [max(one.seen, snapshot.at - BUSY_NODE_S) - STALLED_AFTER_S for one in standings]
    sampled = [i for i in alive if job.ranks[i].sample is not None]
    ran = loading or any((job.ranks[i].moved_at or 0.0) > lately[i] for i in alive)
    runs = ran and not waits and len(sampled) == len(alive)
    moves = any(standings[i].moved and standings[i].since > lately[i] for i in sampled)
    moves = moves or runs or (loading and still < hang_after) or _recurs(before, regular=False)
    return Progress("progressing" if moves else "unknown", since, stalled, standings)


def _recurs(waiting: Sequence[tuple[Rank, Activity, Standing]], *, regular: bool) -> bool:
    """Whether a rank waits no longer than it has before, and went on: the job may only be slow."""
    return any(
        max(one.seen, one.until) - one.since < allowed_s(rank, activity, one.since, regular=regular)
        for rank, activity, one in waiting
    )


def _compute(
    watcher: Watcher, ranks: Sequence[Rank], activities: Sequence[Activity], alive: Sequence[int]
) -> bool:
    """Whether a rank runs native code without the GIL, or a worker that it waits for does."""
    some = [(ranks[i], activities[i]) for i in alive if activities[i].kind in _COMPUTES]
    return any(computes(*one) or watcher.computes(*one) for one in some)


def _only_serves(
    reader: Reader, ranks: Sequence[Rank], activities: Sequence[Activity], alive: Sequence[int]
) -> bool:
    """Whether all that wait do so in `rpc.shutdown`, and somebody is at work.

    Servers go there as soon as they have started, and answer calls from then on. Who goes round in
    a `while` and gets no memory is not at work.
    """
    if any(activities[i].op != ENDS for i in alive if activities[i].kind in COMMUNICATION):
        return False
    waiting = [i for i in alive if activities[i].kind in COMMUNICATION]
    if not waiting:
        return False
    waiters = Waiters(reader, [ranks[i] for i in waiting])
    works = [i for i in alive if activities[i].kind in _AT_WORK]
    return any(waiters.circle(ranks[i]) is None for i in works)


def _without_ranks(
    snapshot: Snapshot, job: Job, reader: Reader, watcher: Watcher, hang_after: float
) -> Progress:
    """A job of launchers only: it starts, until its rendezvous has lasted too long.

    Where there are ranks whose number cannot be read, what they do cannot be told either.
    """
    if job.unnumbered:
        return Progress("unknown", None, None, ())
    since: list[float] = []
    for launcher in job.launchers:
        sample = job.launcher_sample(launcher)
        if reader.process(launcher, sample).kind != "rendezvous":
            continue
        found = watcher.by_stack(sample, None, snapshot.at)
        seen_to_wait = not found.moved and snapshot.at - found.since >= STALLED_AFTER_S
        # Launchers without ranks have done nothing but wait since shortly after their start.
        began = launcher.started_at + STALLED_AFTER_S
        since.append(min(found.since, began) if seen_to_wait else found.since)
    last = max(since, default=None)
    stalled = None if last is None else max(snapshot.at - last, 0.0)
    hung = stalled is not None and stalled >= hang_after
    return Progress("hung" if hung else "starting", last, stalled, ())
