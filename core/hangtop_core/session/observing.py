"""Observation time: waits until enough was observed, for every command and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from hangtop_core.analysis.activity import Reader
from hangtop_core.analysis.shares import by_children, slow_one
from hangtop_core.analysis.verdict.base import LIKELY
from hangtop_core.collect.needs import LIMIT_S, PAUSE_LIMIT_S
from hangtop_core.diagnosis import MAKES_PROGRESS, STALLED_AFTER_S
from hangtop_core.errors import ClosedError, NoNodeError
from hangtop_core.jobs.following import follow
from hangtop_core.jobs.named import answers_to, only_named, training
from hangtop_core.model.node.states import FAILED
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_hook.numericsfile import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.diagnosis import Diagnosis, Need
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot
    from hangtop_core.model.updates import Options, Update

SETTLE_S = 3.0
"""Seconds to look for a job after the node has answered: a starting job appears within."""
LOOK_S = 1.5
"""Seconds after which a command that has found no job says so."""
YOUNG_S = 7.0
"""Maximum seconds after its start until a program that the user named is shown: in its first 5 it
may still start ranks (`hangtop_probe.table.table`)."""
PROGRAMS_S = 2.4
"""Maximum seconds where there are Python programs: a stack shows that a process only waits to start
ranks."""
LEAST_LOOK_S = 0.8
"""Seconds of that after the nodes have answered."""
CONNECT_S = 20.0
"""Seconds to wait for the first answer of one node."""
CONNECT_ALL_S = 300.0
"""Seconds to wait for many nodes, which log in by turns; each reports its own failure."""
STANDSTILL_S = 15.0
"""Seconds to wait for a connected node that does not send its processes."""
SETTLED = {"ready", *FAILED}
DECIDED = {"hung", "exited", *MAKES_PROGRESS}
EVIDENCE_S = 5.0
"""Seconds in which the evidence for a hang still arrives, after the first look at the job."""
FIRST_STACKS_S = 10.0
"""Seconds in which every rank gives its first stack: over pdsh each takes a login of its own."""
LATE_STACKS_S = 60.0
"""Further seconds for stacks from overloaded nodes, or to an overloaded head: without stacks there
is hardly a verdict."""
LATE_S = 20.0
"""Seconds by which the observed state may lag behind: a moving process is sampled every 10 s."""
LEAST_LATE_S = 3.0
STEPS_S = 30.0
"""Minimum seconds for which a job with uneven ranks is observed."""

Lack = Literal["time", "stacks", "certainty"]


class Observation(Protocol):
    """The part of a session that waiting needs: a source of updates."""

    options: Options

    @property
    def closed(self) -> bool:
        """Return whether no more updates come."""

    @property
    def age_s(self) -> float:
        """Return the seconds since it began."""

    @property
    def latest(self) -> Update | None:
        """Return the newest update."""

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> Update | None:
        """Wait for an update for which ``predicate`` holds; return None without one in time."""


def answered(update: Update) -> bool:
    """Return whether every node has sent its processes, or the reason why it cannot.

    A job is enough on a single node; of several nodes, each may have a part of it.
    """
    nodes = update.snapshot.nodes
    if len(nodes) == 1 and update.snapshot.jobs:
        return True
    return all(_has_settled(node, update.snapshot.at) for node in nodes)


def _has_settled(node: Node, now: float) -> bool:
    """Return whether a node has answered, cannot, or has been slow or lost for too long."""
    if node.state in ("slow", "lost"):
        return now - node.since >= STANDSTILL_S
    return node.state in SETTLED and (node.state != "ready" or node.last_seen is not None)


def has_job(update: Update, key: str | None, *, whole: bool = False) -> bool:
    """Return whether the update shows the requested job, or any job without a request.

    With `whole`, jobs count only once the numbers of their ranks are known.
    """
    return any(
        (key is None or answers_to(job, key)) and (_is_whole(job) or not whole)
        for job in training(update.snapshot)
    )


def _is_whole(job: Job) -> bool:
    """Return whether there are ranks or a launcher, and all rank numbers are known."""
    ranks = [process.process for process in job.ranks]
    return bool(ranks or job.launchers) and all(
        process.rank is not None or process.is_program or process.denied for process in ranks
    )


def is_young(snapshot: Snapshot) -> bool:
    """Return whether a process that the user named is new: it may yet be or start a rank."""
    processes = (process for job in snapshot.jobs if only_named(job) for process in job.unnumbered)
    return any(snapshot.at - process.started_at < YOUNG_S for process in processes)


def conclusion(update: Update, job: Job) -> Diagnosis | None:
    """Return the diagnosis of a job that was seen before; None when the job is gone."""
    now = follow(job, update.snapshot)
    return update.diagnoses.get(now.key) if now is not None else None


def lacking(update: Update, job: Job, elapsed: float, at_least: float) -> Lack | None:
    """Return what observing a job longer would add; None where it would add nothing.

    Args:
        update: the newest update.
        job: the job as seen before.
        elapsed: seconds for which it was observed.
        at_least: seconds for which it is observed in any case.
    """
    diagnosis = conclusion(update, job)
    if diagnosis is None:
        return None
    if elapsed < at_least:
        return "time"
    if diagnosis.state == "hung" and elapsed < FIRST_STACKS_S and lacks_answers(job, update):
        return "stacks"
    if not _has_processes(job, update):
        return None
    if decided(diagnosis, elapsed) and not (diagnosis.state == "starting" and _meet(job, update)):
        return "certainty" if _may_be_slow(diagnosis, job, update, elapsed) else None
    return "stacks" if lacks_stacks(job, update) else "certainty"


def _may_be_slow(diagnosis: Diagnosis, job: Job, update: Update, elapsed: float) -> bool:
    """Return whether ranks work unevenly, so that a few steps more may show slow ones.

    The slow rank is known at once; the duration of steps, only once some have passed.
    """
    has_cause = any(verdict.cause != "straggler" for verdict in diagnosis.verdicts)
    undecided = diagnosis.state == "progressing" and not has_cause and elapsed < STEPS_S
    return undecided and _unevenly(job, update)


def limit_s(at_least: float, hang_after: float) -> float:
    """Return the maximum seconds for which a job is observed, except for late stacks.

    An observation that lasts as long as a hang takes has its end set by the user.
    """
    late = LATE_S if at_least < hang_after else min(LATE_S, max(LEAST_LATE_S, hang_after / 4))
    return max(at_least, hang_after) + late


def wait_while(session: Observation, lack: Callable[[Update], Lack | None], limit: float) -> None:
    """Wait while observing longer would add something, at most ``limit`` seconds.

    Requested stacks that have not come extend the wait, and then so does their analysis: a node, or
    this machine, may be overloaded.
    """
    if session.wait(lambda update: lack(update) is None, limit) is not None:
        return
    if session.wait(lambda update: lack(update) == "stacks", 0.0) is None:
        return
    if session.wait(lambda update: lack(update) != "stacks", LATE_STACKS_S) is not None:
        session.wait(lambda update: lack(update) is None, LATE_S)


def _has_processes(job: Job, update: Update) -> bool:
    """Return whether there is a rank or a launcher that waiting could show more of."""
    now = follow(job, update.snapshot)
    return now is not None and bool(now.ranks or now.launchers)


def _meet(job: Job, update: Update) -> bool:
    """Return whether every rank is in init_process_group, or asleep in another call for seconds.

    So no rank is on the way there any more. Each attempt to resolve a name or to connect may take
    many seconds there.
    """
    now, reader = follow(job, update.snapshot), Reader(update.snapshot.stacks)
    ranks, at = now.ranks if now is not None else (), update.snapshot.at
    sleeps = [rank.left_at is not None and at - rank.left_at >= STALLED_AFTER_S for rank in ranks]
    return bool(ranks) and all(
        sleep or reader.rank(rank).kind == "init" for rank, sleep in zip(ranks, sleeps, strict=True)
    )


def _unevenly(job: Job, update: Update) -> bool:
    """Return whether one rank works while all others wait, or only children of ranks work.

    Ranks may work by turns, or one may be slow, or a phase be long. Return True also where ranks
    have waited for seconds for ranks that do something else: the others may only poll a lock, and
    be sampled at another line by chance; and where a rank waited for others for seconds before: a
    few steps more show whether some ranks make all steps long.
    """
    now, reader = follow(job, update.snapshot), Reader(update.snapshot.stacks)
    ranks = [rank for rank in now.ranks if not rank.ended] if now is not None else []
    if slow_one(ranks) is not None or _all_save(ranks, reader):
        return True
    if any(wait.for_ranks for rank in ranks for wait in rank.waits):
        return True
    waiting: list[Rank] = []
    working: list[Rank] = []
    for rank in ranks:
        (waiting if reader.rank(rank).kind in COMMUNICATION else working).append(rank)
    if not working:
        return False
    at = update.snapshot.at
    waited = at - max((rank.left_at or at for rank in waiting), default=at)
    return waited >= STALLED_AFTER_S or all(map(by_children, working))


def _all_save(ranks: list[Rank], reader: Reader) -> bool:
    """Return whether all ranks write a checkpoint, whose duration is not known yet."""
    return bool(ranks) and all(reader.rank(rank).kind == "checkpoint" for rank in ranks)


def lacks_answers(job: Job, update: Update) -> bool:
    """Return whether a rank may still give its first stack, or its non-finite values."""
    return any(
        rank.sample is None or (VARIABLE in rank.process.env and rank.numerics is None)
        for rank in _reachable_ranks(job, update)
    )


def lacks_stacks(job: Job, update: Update) -> bool:
    """Return whether a rank may still give its first stack."""
    return any(rank.sample is None for rank in _reachable_ranks(job, update))


def _reachable_ranks(job: Job, update: Update) -> list[Rank]:
    """Return the ranks of a job that can answer requests."""
    now = follow(job, update.snapshot)
    ready = {node.name for node in update.snapshot.nodes if node.state == "ready"}
    return [
        rank
        for rank in (now.ranks if now is not None else ())
        if rank.node in ready and not rank.ended and not rank.process.denied
    ]


def decided(diagnosis: Diagnosis, elapsed: float) -> bool:
    """Return whether observing longer would not change the diagnosis of a job."""
    if diagnosis.state == "hung":
        return bool(diagnosis.verdicts) or elapsed >= EVIDENCE_S
    if diagnosis.state == "starting":
        return elapsed >= 2 * STALLED_AFTER_S and (diagnosis.stalled_for_s or 0.0) < STALLED_AFTER_S
    if diagnosis.job is not None and not diagnosis.job.ranks_seen and diagnosis.job.unnumbered:
        return True
    return diagnosis.state in DECIDED and not _may_hang(diagnosis)


def _may_hang(diagnosis: Diagnosis) -> bool:
    """Return whether ranks wait, or waited in vain, for a rank without visible progress."""
    first = next(iter(diagnosis.verdicts), None)
    if diagnosis.state != "progressing" or first is None:
        return False
    if first.cause == "missing-collective":
        return True  # the rank left behind may be in an endless loop
    slow = first.cause in ("straggler", "long-phase", "data-starved")
    return slow and first.confidence <= LIKELY


def missing(diagnosis: Diagnosis | None) -> list[Need]:
    """Return the needs of rules that are still open."""
    needs = diagnosis.needs if diagnosis is not None else ()
    return [need for need in needs if need.state in ("wanted", "asked")]


def needs_limit_s(session: Observation) -> float:
    """Return the seconds to wait for open needs."""
    return PAUSE_LIMIT_S * 2 if session.options.allow_pause else LIMIT_S + 1


def observed(session: Observation, at_least: float) -> Update:
    """Wait until enough is known of every job, and return the newest update.

    The conditions are those of `hangtop diagnose` for one job: all nodes have answered or cannot,
    the session is ``at_least`` seconds old, the state of each job is clear, and the requests of
    rules are answered; each within its limit.

    Raises:
        ClosedError: the session was closed.
        NoNodeError: no node has sent anything.
    """
    first = session.wait(lambda update: True, CONNECT_S)
    if first is not None and not session.closed:
        is_single = len(first.snapshot.nodes) == 1
        session.wait(answered, CONNECT_S if is_single else CONNECT_ALL_S)
        session.wait(lambda update: has_job(update, None, whole=True), SETTLE_S - session.age_s)
        limit = limit_s(at_least, session.options.hang_after)
        wait_while(
            session,
            lambda update: _lacking(update, session.age_s, at_least),
            limit - session.age_s,
        )
        session.wait(_complete, needs_limit_s(session))
    if session.closed:
        raise ClosedError("the session was closed")
    if session.latest is None:
        raise NoNodeError("no node has answered")
    return session.latest


def _lacking(update: Update, elapsed: float, at_least: float) -> Lack | None:
    """Return what observing all jobs longer would add."""
    lacks = {lacking(update, job, elapsed, at_least) for job in update.snapshot.jobs}
    order: tuple[Lack, ...] = ("time", "stacks", "certainty")
    return next((lack for lack in order if lack in lacks), None)


def _complete(update: Update) -> bool:
    return not any(missing(diagnosis) for diagnosis in update.diagnoses.values())
