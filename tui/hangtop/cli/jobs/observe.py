"""Shared parts of the headless commands: a session, its job, and progress while waiting."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop.cli.output.output import StatusLine
from hangtop_core.errors import HangtopError, NoJobError, NoNodeError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.jobs.named import answers_to, only_named, training
from hangtop_core.logs.meaning.kernel_lines import deaths
from hangtop_core.model.node.states import FAILED, OBSERVED
from hangtop_core.session.observing import (
    CONNECT_ALL_S,
    CONNECT_S,
    LEAST_LOOK_S,
    LOOK_S,
    PROGRAMS_S,
    SETTLE_S,
    YOUNG_S,
    answered,
    has_job,
    is_young,
)
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text import rank_sets
from hangtop_core.text.clean import AS_ROOT, clean, name_pids, plural
from hangtop_core.text.commands import spelt_or_why
from hangtop_core.text.launchers import LOOKED_FOR

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Container, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot
    from hangtop_core.session.session import Session, Update


class Found(NamedTuple):
    """The result of waiting until all nodes answered, or until the user pressed Ctrl-C."""

    update: Update
    interrupted: bool = False


def find_job(session: Session, key: str | None, pids: Sequence[int] = ()) -> Found:
    """Wait until there is a job, and return the update that shows it.

    Raises:
        NoJobError: there is none; a NoNodeError when no node answers.
        KeyboardInterrupt: Ctrl-C came before any node had answered with a job.
    """
    with StatusLine() as status:
        status.show(
            f"looking at {name_pids(pids)}: a program may start ranks in its first 5 s ..."
            if pids
            else "looking for training jobs ..."
        )
        interrupted = wait_for_nodes(session, status)
        update = None if interrupted else wait_for_job(session, key, named=bool(key or pids))
    update = update or session.latest
    if update is None:
        raise NoNodeError("no node has answered")
    if not has_job(update, key):
        if interrupted:
            tell_unseen(update.snapshot)
            raise KeyboardInterrupt
        raise no_job(update.snapshot, key, pids)
    return Found(update, interrupted)


def wait_for_job(session: Session, key: str | None, *, named: bool) -> Update | None:
    """Wait for a job, and until its ranks have numbers; only briefly where none starts.

    A ``named`` job may just be starting.
    """
    look = SETTLE_S if named else max(LOOK_S - session.age_s, LEAST_LOOK_S)
    update_with_job = session.wait(lambda update: has_job(update, key), look)
    if update_with_job is None and not named and _has_programs(session):
        update_with_job = session.wait(
            lambda update: has_job(update, key), PROGRAMS_S - session.age_s
        )
    if update_with_job is None and named:
        update_with_job = _grown(session, key)
    if update_with_job is None:
        return None
    return session.wait(lambda update: has_job(update, key, whole=True), SETTLE_S)


def _grown(session: Session, key: str | None) -> Update | None:
    """Wait while named processes have just started; return None where none is a job."""

    def is_known(update: Update) -> bool:
        return has_job(update, key) or not is_young(update.snapshot)

    update_with_job = session.wait(is_known, YOUNG_S)
    return (
        update_with_job if update_with_job is not None and has_job(update_with_job, key) else None
    )


def _has_programs(session: Session) -> bool:
    """Return whether there are Python programs that only stacks can show to be a job."""
    nodes = session.latest.snapshot.nodes if session.latest is not None else ()
    return any(node.python_processes for node in nodes)


def wait_for_nodes(session: Session, status: StatusLine) -> bool:
    """Wait until all nodes have answered or failed.

    Return whether Ctrl-C ended the wait: then only the nodes that answered are used.
    """

    def have_answered(update: Update) -> bool:
        nodes = update.snapshot.nodes
        reached = sum(node.last_seen is not None for node in nodes)
        failed = sum(node.state in FAILED for node in nodes)
        if len(nodes) > 1:
            more = f", {failed} cannot be observed" if failed else ""
            status.show(
                f"{reached} of {len(nodes)} nodes answered{more} ... (Ctrl-C: go on with them)"
            )
        return answered(update)

    try:
        first = session.wait(lambda update: True, CONNECT_S)
        if first is not None:
            is_single = len(first.snapshot.nodes) == 1
            session.wait(have_answered, CONNECT_S if is_single else CONNECT_ALL_S)
    except KeyboardInterrupt:
        return True
    return False


def tell_unseen(snapshot: Snapshot) -> None:
    """Report on stderr which nodes were not observed, and why; grouped by reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for node in snapshot.nodes:
        if node.state not in OBSERVED:
            reason = clean(node.reason or "no answer yet")
            reasons.setdefault((node.state, reason, node.fix or ""), []).append(node.name)
    for (state, reason, fix), names in reasons.items():
        print(f"hangtop: {nodesets.fold(names)} {state}: {reason}", file=sys.stderr)
        if fix:
            print(f"    {clean(fix)}", file=sys.stderr)


def tell_unanswered(asked: Mapping[str, Future[Any]], seconds: float) -> None:
    """Report on stderr which nodes did not answer a request within its limit, and why."""
    for node, future in asked.items():
        try:
            future.result(seconds)
        except (HangtopError, TimeoutError) as error:
            print(f"hangtop: {clean(node)}: {clean(str(error) or 'no answer')}", file=sys.stderr)


def choose(snapshot: Snapshot, key: str | None) -> Job:
    """Return the job asked for, or the first; report on stderr when there was a choice.

    Raises:
        UsageError: several jobs match the key.
        NoJobError: none does.
    """
    jobs = [job for job in training(snapshot) if key is None or answers_to(job, key)]
    if not jobs:
        raise no_job(snapshot, key)
    if len(jobs) > 1 and key is not None:
        keys = ", ".join(spelt_or_why((job.key,)) for job in jobs)
        raise UsageError(f"several jobs go by {clean(key)!r}; choose one by its key: {keys}")
    if len(jobs) > 1:
        alternatives = ", ".join(
            f"{spelt_or_why((job.key,))} ({ranks_of(job)})" for job in jobs[1:]
        )
        print(
            f"{len(jobs)} jobs found; this is {clean(jobs[0].key)}. "
            f"Others, for --job-key: {alternatives}",
            file=sys.stderr,
        )
    return jobs[0]


def chosen_ranks(session: Session, arguments: argparse.Namespace, text: str) -> list[Rank]:
    """Return the ranks of the job that the user named as `2` or `0-3,8`, or else by --pid.

    Raises:
        UsageError: the text cannot be parsed.
        NoJobError: one of the ranks does not exist, or there is no job.
    """
    wanted = _named_ranks(text) if text else frozenset(arguments.pid)
    if not wanted:
        raise UsageError("name a rank by its number, or any process by --pid PID")
    update, _ = find_job(session, arguments.job_key, arguments.pid)
    job = choose(update.snapshot, arguments.job_key)

    def is_named(rank: Rank, by: Container[int] = wanted) -> bool:
        return rank_sets.contains(by, rank.rank) if text else rank.process.pid in by

    def absent(ranks: Sequence[Rank]) -> set[int]:
        return {key for key in wanted if not any(is_named(rank, {key}) for rank in ranks)}

    def is_complete(update: Update) -> bool:
        now = follow(job, update.snapshot)
        return now is not None and not absent(now.members)

    update = session.wait(is_complete, SETTLE_S) or session.latest or update
    job = follow(job, update.snapshot) or job
    if missing := absent(job.members):
        raise _lacks(job, missing, by_pid=not text)
    return [rank for rank in job.members if is_named(rank)]


def _lacks(job: Job, missing: Collection[int], *, by_pid: bool) -> NoJobError:
    """Return the error for named ranks that do not exist, by numbers or by pids."""
    unread = [
        process
        for process in job.unnumbered
        if by_pid and process.pid in missing and process.denied
    ]
    if unread:
        pids = name_pids([process.pid for process in unread])
        return NoJobError(f"{pids} cannot be read", clean(unread[0].denied or ""))
    names = f"rank of {name_pids(sorted(missing))}" if by_pid else rank_sets.names(missing)
    members = rank_sets.fold(rank.rank for rank in job.members)
    what = f"there {'is' if len(missing) == 1 else 'are'} no {names} in this job"
    return NoJobError(what, f"There is: {members or 'none'}")


def _named_ranks(text: str) -> frozenset[int]:
    try:
        return rank_sets.parse(text)
    except ValueError as error:
        raise UsageError(f"RANK cannot be read: {error}") from error


def ranks_of(job: Job) -> str:
    """Return how many ranks a job has, in words."""
    return plural(len(job.ranks), "rank") if job.ranks else "no ranks yet"


def no_job(snapshot: Snapshot, key: str | None, pids: Sequence[int] = ()) -> NoJobError:
    """Return the error that says what was searched for and what was seen instead."""
    silent = [line for node in snapshot.nodes for line in _silence(node)]
    observed = sum(node.state in OBSERVED for node in snapshot.nodes)
    if not observed:
        return _no_node(len(snapshot.nodes), silent)
    jobs = training(snapshot)
    if pids and not jobs:
        return _no_ranks(snapshot, pids)
    if key is not None and jobs:
        return _no_such_job(jobs, key)
    lines = [NoJobError.HELP, *silent]
    for node in snapshot.nodes:
        lines += _processes_seen(node)
        lines += [
            f"The kernel log of {clean(node.name)}: {clean(death, 200)}"
            for death in deaths(node, snapshot.at, pids)
        ]
    where = f" on the {plural(observed, 'node')} that can be seen"
    where = "" if observed == len(snapshot.nodes) else where
    return NoJobError(f"no training job found{where}", "\n".join(lines))


def _no_node(count: int, silent: Sequence[str]) -> NoNodeError:
    what = "the node does not answer" if count == 1 else f"none of the {count} nodes answers"
    last = "`hangtop doctor` with the same options tries it step by step."
    return NoNodeError(what, "\n".join([*silent, last]))


def _no_such_job(jobs: Sequence[Job], key: str) -> NoJobError:
    keys = ", ".join(spelt_or_why((job.key,)) for job in jobs)
    available = f"There is: {keys}"
    if any(process.denied for job in jobs for process in job.unnumbered):
        available += "\nOf ranks that may not be read neither port nor run id is known: "
        available += f"{AS_ROOT}, or --sudo for other nodes"
    return NoJobError(f"no job goes by {key!r}", available)


def _processes_seen(node: Node) -> Iterator[str]:
    """Yield what was seen on a node instead of ranks."""
    if node.processes:
        yield f"Looked at {plural(node.processes, 'process', 'processes')} on {clean(node.name)}."
    for user, count in node.other_users.items():
        yield f"Left out: {plural(count, 'rank')} of user {clean(user)} (--all-users shows them)."
    if node.python_processes:
        yield "Python programs that are no ranks:"
    for command in node.python_processes:
        yield f"    {clean(command, 120)}"


def _no_ranks(snapshot: Snapshot, pids: Sequence[int]) -> NoJobError:
    """Return the error that describes the named processes, none of which is a rank."""
    given = ", ".join(str(pid) for pid in pids)
    unnumbered = [process for job in snapshot.jobs if only_named(job) for process in job.unnumbered]
    if not unnumbered:
        what = "no process has this id" if len(pids) == 1 else "no process has one of these ids"
        return NoJobError(f"{what}: {given}", "`hangtop` without --pid looks for all jobs.")
    lines = []
    for process in unnumbered:
        on = f" on {clean(process.node)}" if len(snapshot.nodes) > 1 else ""
        line = clean(" ".join(process.cmdline) or process.comm, 120)
        lines.append(f"pid {process.pid}{on}, of user {clean(process.user)}: {line}")
    lines.append(
        f"A rank has {LOOKED_FOR} in its environment, or\n"
        "is in a process group of torch: who was started a moment ago may not be yet.\n"
        "`hangtop` without --pid looks for all jobs."
    )
    what = f"pid {given} is" if len(pids) == 1 else f"none of pids {given} is"
    is_none = (
        "no rank, and none is below it" if len(pids) == 1 else "a rank, and none is below them"
    )
    return NoJobError(f"{what} {is_none}", "\n".join(lines))


def _silence(node: Node) -> list[str]:
    """Return why a node is not ready, and what to do about it; nothing for a ready one."""
    if node.state == "ready":
        return []
    text = f"{clean(node.name)} is {node.state}: {clean(node.cause or 'no answer yet')}"
    return [text, f"    {clean(node.fix)}"] if node.fix else [text]


def exit_status(diagnosis: Diagnosis) -> int:
    """Return the exit status of a diagnosis; `unknown` explains nothing."""
    if diagnosis.state == "hung" or diagnosis.hung_until_end:
        return 10 if any(verdict.cause != "unknown" for verdict in diagnosis.verdicts) else 11
    return 13 if diagnosis.state == "unknown" else 0
