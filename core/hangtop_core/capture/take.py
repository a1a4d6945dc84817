"""Request what a capture should hold beyond a session's own data."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from hangtop_core.errors import HangtopError
from hangtop_core.model.snapshot import pids_of
from hangtop_core.state.outputs import wanted
from hangtop_hook.numericsfile import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.model.snapshot import Job
    from hangtop_core.session.session import Session

WINDOW = 1 << 18
"""Bytes from the end of each log."""
LIMIT_S = 60.0
"""Seconds for all answers together."""
ARRIVE_S = 5.0
"""Seconds for a snapshot with the last answers to arrive."""
TELL_S = 0.2
"""Seconds between two progress reports."""


def take(
    session: Session,
    job: Job,
    stacks: Mapping[str, Sequence[int]],
    *,
    want_locals: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Ask all nodes of a job for stacks, descriptors, flight recorders and the ends of logs.

    Also for inf and nan that ranks have found, if they search for these. Answers come in the
    session's updates. Recorders are not requested in read-only mode.

    Args:
        session: the session that observes the job.
        job: the job whose ranks are asked.
        stacks: the processes whose stacks are taken, by node.
        want_locals: with their variables.
        progress: receives the numbers of answered and of all requests.

    Returns:
        Why some of it is missing, one line for each.
    """
    futures: list[tuple[str, Future[Any]]] = []
    looking = pids_of(rank for rank in job.ranks if VARIABLE in rank.process.env)
    if stacks:
        futures.append(("stacks", session.sample(stacks, locals=want_locals)))
    for node, pids in job.pids().items():
        futures.append((f"descriptors on {node}", session.descriptors(node, pids)))
        if not session.options.readonly:
            futures.append((f"recorders on {node}", session.recorder(node, pids)))
    futures += [
        (f"numerics on {node}", session.numerics(node, pids)) for node, pids in looking.items()
    ]
    futures += [(f"logs on {output.node}", session.log(output, WINDOW)) for output in wanted(job)]
    until = time.monotonic() + LIMIT_S
    waiting: set[Future[Any]] = {future for _, future in futures}
    while waiting and (left := until - time.monotonic()) > 0:
        _, waiting = wait(waiting, timeout=min(left, TELL_S))
        progress(len(futures) - len(waiting), len(futures))
    missing = [f"{what}: {why}" for what, request in futures if (why := _why(request))]
    arrived = time.time()
    session.wait(lambda update: update.snapshot.at >= arrived, timeout=ARRIVE_S)
    return missing


def _why(future: Future[Any]) -> str:
    """Return why a request failed; empty if it succeeded."""
    if not future.done():
        return "no answer in time"
    error = future.exception()
    return "" if error is None else str(error) if isinstance(error, HangtopError) else repr(error)
