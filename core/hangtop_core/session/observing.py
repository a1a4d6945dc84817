"""Whether enough was observed, and waiting until it was: for every command, and for programs."""

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
"""Seconds to look for a job after the node has answered: one just starting shows up within."""
LOOK_S = 1.5
"""Seconds after which a command that has met no job at all says so."""
YOUNG_S = 7.0
"""Seconds after its start within which a program that the user named is shown at the latest: in its
first 5 it may still start ranks (`hangtop_probe.table.table`)."""
PROGRAMS_S = 2.4
"""The same where there are Python programs: who only waits to start ranks is known by its stack."""
LEAST_LOOK_S = 0.8
"""Seconds of that after the nodes have answered."""
CONNECT_S = 20.0
"""Seconds to wait for the first answer of one node."""
CONNECT_ALL_S = 300.0
"""Of many, which log in by turns; each says by itself when it cannot be reached."""
STANDSTILL_S = 15.0
"""Seconds after which nobody waits for a node that connected and does not show its processes."""
SETTLED = {"ready", *FAILED}
DECIDED = {"hung", "exited", *MAKES_PROGRESS}
EVIDENCE_S = 5.0
"""Seconds in which the evidence for a hang still comes in, after the first look at the job."""
FIRST_STACKS_S = 10.0
"""Seconds in which every rank gives its first stack: over pdsh each takes a login of its own."""
LATE_STACKS_S = 60.0
"""Seconds more in which they come from nodes that have far too much to do, or to a head that has:
without stacks there is hardly a verdict."""
LATE_S = 20.0
"""Seconds by which what is observed may lag behind: a process that moves is sampled every 10 s."""
LEAST_LATE_S = 3.0
STEPS_S = 30.0
"""Seconds for which a job is observed at least in which ranks work unevenly."""

Lack = Literal["time", "stacks", "certainty"]


class Observation(Protocol):
    """What gives updates: of a session as much as waiting for some needs."""

    options: Options

    @property
    def closed(self) -> bool:
        """Whether no more come."""

    @property
    def age_s(self) -> float:
        """Seconds since it began."""

    @property
    def latest(self) -> Update | None:
        """The newest update."""

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> Update | None:
        """Wait for an update for which ``predicate`` holds; None where none came in time."""


def answered(update: Update) -> bool:
    """Whether every node has shown its processes, or said why it cannot.

    One node with a job is enough where it is the only one; of several, each may have a part.
    """
    nodes = update.snapshot.nodes
    if len(nodes) == 1 and update.snapshot.jobs:
        return True
    return all(_has_settled(node, update.snapshot.at) for node in nodes)


def _has_settled(node: Node, now: float) -> bool:
    """Whether a node has answered, cannot, or has been slow or lost for so long that it may not."""
    if node.state in ("slow", "lost"):
        return now - node.since >= STANDSTILL_S
    return node.state in SETTLED and (node.state != "ready" or node.last_seen is not None)


def has_job(update: Update, key: str | None, *, whole: bool = False) -> bool:
    """Whether the update shows the job asked for, or any when none was asked for.

    With `whole`, not as long as the numbers of its ranks are still being found out.
    """
    return any(
        (key is None or answers_to(job, key)) and (_is_whole(job) or not whole)
        for job in training(update.snapshot)
    )


def _is_whole(job: Job) -> bool:
    """Whether there are ranks, or a launcher of some, and no number may still be found out."""
    ranks = [one.process for one in job.ranks]
    return bool(ranks or job.launchers) and all(
        one.rank is not None or one.is_program or one.denied for one in ranks
    )


def is_young(snapshot: Snapshot) -> bool:
    """Whether a process that the user named has just started: it may yet be a rank, or have one."""
    some = (one for job in snapshot.jobs if only_named(job) for one in job.unnumbered)
    return any(snapshot.at - one.started_at < YOUNG_S for one in some)


def conclusion(update: Update, job: Job) -> Diagnosis | None:
    """What an update says about a job that was seen before; None when the job is gone."""
    now = follow(job, update.snapshot)
    return update.diagnoses.get(now.key) if now is not None else None


def lacking(update: Update, job: Job, elapsed: float, at_least: float) -> Lack | None:
    """What observing a job longer would add; None where it would add nothing.

    Args:
        update: the newest.
        job: as it was seen before.
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
    """Whether ranks work unevenly, and a few steps more may show that some are slow.

    Who is slow is known; how long steps take, only once some have passed.
    """
    known = any(verdict.cause != "straggler" for verdict in diagnosis.verdicts)
    undecided = diagnosis.state == "progressing" and not known and elapsed < STEPS_S
    return undecided and _unevenly(job, update)


def limit_s(at_least: float, hang_after: float) -> float:
    """Seconds for which a job is observed at most, but for stacks that are late.

    Who has it observed for as long as a hang takes has also said when that is to end.
    """
    late = LATE_S if at_least < hang_after else min(LATE_S, max(LEAST_LATE_S, hang_after / 4))
    return max(at_least, hang_after) + late


def wait_while(session: Observation, lack: Callable[[Update], Lack | None], limit: float) -> None:
    """Wait as long as observing longer would add something, so many seconds at most.

    For stacks that were asked for and have not come it is waited longer, and then for what they
    tell: a node, or this machine, may have far too much to do.
    """
    if session.wait(lambda update: lack(update) is None, limit) is not None:
        return
    if session.wait(lambda update: lack(update) == "stacks", 0.0) is None:
        return
    if session.wait(lambda update: lack(update) != "stacks", LATE_STACKS_S) is not None:
        session.wait(lambda update: lack(update) is None, LATE_S)


def _has_processes(job: Job, update: Update) -> bool:
    """Whether there is a rank or a launcher that waiting could tell more about."""
    now = follow(job, update.snapshot)
    return now is not None and bool(now.ranks or now.launchers)


def _meet(job: Job, update: Update) -> bool:
    """Whether every rank is in init_process_group, or sleeps in one call elsewhere for seconds.

    So nobody is seen to be on the way there any more. Each attempt to resolve a name or to connect
    may take many seconds there.
    """
    now, reader = follow(job, update.snapshot), Reader(update.snapshot.stacks)
    ranks, at = now.ranks if now is not None else (), update.snapshot.at
    sleeps = [one.left_at is not None and at - one.left_at >= STALLED_AFTER_S for one in ranks]
    return bool(ranks) and all(
        sleep or reader.rank(one).kind == "init" for one, sleep in zip(ranks, sleeps, strict=True)
    )


def _unevenly(job: Job, update: Update) -> bool:
    """Whether one rank works while all others wait, or only children of all ranks, or of one, do.

    It may be by turns, or that one is slow, or that phase is long. Or whether they have waited for
    seconds for ranks that do something else: these may only look at a lock again and again, and be
    met at another line of that by chance. Or whether a rank has waited for others for seconds
    before: a few steps more show whether some ranks make all of them long.
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
    """Whether all ranks write a checkpoint: for how long is yet to be seen."""
    return bool(ranks) and all(reader.rank(one).kind == "checkpoint" for one in ranks)


def lacks_answers(job: Job, update: Update) -> bool:
    """Whether there is a rank that may still give its first stack, or what it found not finite."""
    return any(
        rank.sample is None or (VARIABLE in rank.process.env and rank.numerics is None)
        for rank in _that_answer(job, update)
    )


def lacks_stacks(job: Job, update: Update) -> bool:
    """Whether there is a rank that may still give its first stack."""
    return any(rank.sample is None for rank in _that_answer(job, update))


def _that_answer(job: Job, update: Update) -> list[Rank]:
    """Ranks of a job that can be asked for something."""
    now = follow(job, update.snapshot)
    ready = {node.name for node in update.snapshot.nodes if node.state == "ready"}
    return [
        rank
        for rank in (now.ranks if now is not None else ())
        if rank.node in ready and not rank.ended and not rank.process.denied
    ]


def decided(diagnosis: Diagnosis, elapsed: float) -> bool:
    """Whether observing longer would not change what can be said about a job."""
    if diagnosis.state == "hung":
        return bool(diagnosis.verdicts) or elapsed >= EVIDENCE_S
    if diagnosis.state == "starting":
        return elapsed >= 2 * STALLED_AFTER_S and (diagnosis.stalled_for_s or 0.0) < STALLED_AFTER_S
    if diagnosis.job is not None and not diagnosis.job.ranks_seen and diagnosis.job.unnumbered:
        return True
    return diagnosis.state in DECIDED and not _may_hang(diagnosis)


def _may_hang(diagnosis: Diagnosis) -> bool:
    """Whether others wait, or have in vain, for a rank of which nothing shows that it gets on."""
    first = next(iter(diagnosis.verdicts), None)
    if diagnosis.state != "progressing" or first is None:
        return False
    if first.cause == "missing-collective":
        return True  # who is left may be in a loop that it never leaves
    slow = first.cause in ("straggler", "long-phase", "data-starved")
    return slow and first.confidence <= LIKELY


def missing(diagnosis: Diagnosis | None) -> list[Need]:
    """What is still to come of what rules have asked for."""
    needs = diagnosis.needs if diagnosis is not None else ()
    return [one for one in needs if one.state in ("wanted", "asked")]


def needs_limit_s(session: Observation) -> float:
    """Seconds for which that is waited for."""
    return PAUSE_LIMIT_S * 2 if session.options.allow_pause else LIMIT_S + 1


def observed(session: Observation, at_least: float) -> Update:
    """Wait until enough is known of every job, and return the newest update.

    That is as `hangtop diagnose` waits for one job: until all nodes have answered or cannot, the
    session is ``at_least`` seconds old, it is clear how each job gets on, and what rules have asked
    for has come; each within its limit.

    Raises:
        ClosedError: the session was closed.
        NoNodeError: nothing has come from any node.
    """
    first = session.wait(lambda update: True, CONNECT_S)
    if first is not None and not session.closed:
        one = len(first.snapshot.nodes) == 1
        session.wait(answered, CONNECT_S if one else CONNECT_ALL_S)
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
    """What observing all jobs longer would add."""
    lacks = {lacking(update, job, elapsed, at_least) for job in update.snapshot.jobs}
    order: tuple[Lack, ...] = ("time", "stacks", "certainty")
    return next((one for one in order if one in lacks), None)


def _complete(update: Update) -> bool:
    return not any(missing(one) for one in update.diagnoses.values())
