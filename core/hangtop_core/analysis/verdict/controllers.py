"""Controllers of a job: what its API server, its engine or its driver does while ranks wait.

They are launchers that are programs of their own: of multiprocessing and Ray. One that is stuck
keeps all ranks waiting for work, which looks like a server that nobody asks for anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.standing import GONE, HALTED
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.requestwaits import (
    Server,
    Wait,
    has_requests,
    is_door,
    is_loop_wait,
    request_wait,
    server,
)
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import on_node
from hangtop_core.analysis.verdict.threadwords import blocks_loop
from hangtop_core.diagnosis import FIRST_STACKS_S, STALLED_AFTER_S, Culprit
from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.text.clean import clean, duration
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import RequestWait
    from hangtop_core.model.snapshot import Process, StackSample
    from hangtop_core.stacks.kinds import Kind

STARTERS = frozenset({"multiprocessing", "mp.spawn", "Ray"})
"""Launchers that are programs with something to do of their own."""
_LETS_BE: frozenset[Kind] = frozenset({"child", "join", "teardown", "sleep", "lock", "waiting"})
"""What a main thread does that looks after others: one that is asked for something is stuck in it,
where it is not the wait for those that are to do it."""
_LOOKS_AFTER: frozenset[Kind] = frozenset({"child", "join", "teardown"})
_ANSWERS: frozenset[Kind] = frozenset({"queue", "unknown"})
LIKELY, UNANSWERED = 0.8, 0.5


class Controller(NamedTuple):
    """A controller, and what its main thread does."""

    process: Process
    activity: Activity
    wait: Wait | None
    """By what it waits for requests, where it does."""
    is_held: bool
    """Whether it is in what keeps it from its work, such as a lock."""
    is_asked: bool
    """Whether somebody waits for an answer of it."""
    lasts: bool
    """Whether its main thread has been in the same functions for as long as a hang takes."""
    since: float
    """Since when."""
    name: str
    """`VLLM::EngineCore`: as it calls itself, else by its function."""
    is_door: bool = False
    """Whether a thread of it waits for requests from outside of the job."""

    @property
    def may_ask(self) -> bool:
        """Whether it may yet send anything: not where it only waits for its children to end."""
        return self.is_door or self.activity.kind not in _LOOKS_AFTER

    @property
    def works(self) -> bool:
        """Whether it is at work, and seen to get on."""
        return not self.lasts and self.wait is None and self.activity.running


def controllers(case: Case) -> list[Controller]:
    """Return the controllers of a job, those that were started last first: nearest to its ranks."""
    some = [one for one in case.job.launchers if one.launcher in STARTERS]
    some.sort(key=lambda one: (-one.started_at, -one.pid))
    found = (_controller(case, one) for one in some)
    return [one for one in found if one is not None]


def lost_controller(case: Case) -> bool:
    """Whether one has ended since the ranks last got anywhere: nobody may ask them any more."""
    since = (case.progress.since or 0.0) - STALLED_AFTER_S
    some = (one for one in case.job.launchers if one.launcher in STARTERS and one.ended)
    failed = (one for one in some if one.exit_code != 0)
    return any(one.gone_at is None or one.gone_at >= since for one in failed)


def is_unread(case: Case) -> bool:
    """Whether the first stack of a Python program among them is still to come."""
    some = (one for one in case.job.launchers if one.launcher in STARTERS)
    new = case.at - case.snapshot.observed_since < FIRST_STACKS_S
    return new and any(
        not one.ended and not one.denied and case.job.launcher_sample(one) is None for one in some
    )


def _controller(case: Case, process: Process) -> Controller | None:
    sample = case.job.launcher_sample(process)
    if process.gone_at is not None or sample is None or not sample.threads:
        return None
    one = server(case, process, sample, case.job.launcher_table(process))
    activity = case.reader.process(process, sample)
    wait, since = request_wait(one), _still_since(process, sample)
    return Controller(
        process,
        activity,
        wait,
        wait is None and _is_held(one, activity),
        has_requests(one),
        case.at - since >= case.hang_after,
        since,
        _name(process, one),
        (wait is not None and wait.is_served) or is_door(one),
    )


def _still_since(process: Process, sample: StackSample) -> float:
    """Return since when a main thread is where it is: before anybody looked, it slept there."""
    since, ran = sample.same_functions_since or sample.at, process.meters.main_last_ran_s
    return since if ran is None else min(since, sample.at - ran)


def _name(process: Process, one: Server) -> str:
    """What it calls itself; where it does not, its outermost function."""
    if process.label != process.launcher:
        return clean(process.label, 60)
    own = [frame for frame in one.threads[0].frames if not is_library(frame)]
    return clean(f"{plain_name(own[-1].name)} of {own[-1].short}" if own else process.label, 60)


def _is_held(one: Server, activity: Activity) -> bool:
    """Whether a main thread, which waits for no requests, is in what keeps it from its work."""
    main = one.threads[0]
    if activity.kind in HALTED | GONE or blocks_loop(main.frames):
        return True
    if is_loop_wait(main.frames):
        return False
    return main.takes_lock or activity.kind not in _LETS_BE | _ANSWERS


def first_stuck(some: Sequence[Controller]) -> Controller | None:
    """Return the controller for which all wait, the nearest to the ranks first.

    Where nobody asks for anything, one that looks after others, or sleeps, may do so for ever.
    """
    some = [one for one in some if one.lasts]
    plain = next((one for one in some if one.is_held), None)
    asks = next((one for one in some if one.is_asked), None)
    if plain is not None or asks is None:
        return plain
    held = (one for one in some if one.wait is None and one.activity.kind not in _LOOKS_AFTER)
    return next((one for one in held if not one.is_asked), None) or asks


def _stuck(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.serving is None or case.serving.stuck is None:
        return
    stuck, waits = case.serving.stuck, case.serving.waits
    process, activity = stuck.process, stuck.activity
    lasts = duration(max(case.at - stuck.since, 0.0))
    who = f"{stuck.name} ({clean(process.node)}, pid {process.pid})"
    text = f"{who} {activity.text} at {activity.at} for {lasts}, and all ranks wait for work"
    source = activity.top.source if activity.top is not None else None
    line = f": `{source.strip()}`" if source else ""
    yield Hit(
        subjects=(),
        absent=(Culprit(None, process.node, process.pid, role=stuck.name),),
        explained=tuple(left),
        summary=sentence(case, text),
        evidence=(
            fact("stacks", None, f"{who}: {activity.text}: {where(activity.top)}{line}"),
            *(fact("stacks", one.rank, f"{_who(one)}waits by {one.text}") for one in waits[:4]),
        ),
        steps=(
            on_node(process.node, "hangtop", "dump", "--pid", process.pid, "--each", "--locals"),
            Advice("end what it waits for, or start the server again"),
        ),
        confidence=LIKELY if stuck.is_held or not stuck.is_asked else UNANSWERED,
    )


def _who(one: RequestWait) -> str:
    return "" if one.rank is not None else f"{one.who} (pid {one.pid}) "


STUCK = Rule(
    cause="controller-stuck",
    title="A controller is stuck, and all ranks wait for work",
    seen="All ranks wait for requests: in a `while`, in a queue, pipe, socket or shared "
    "memory. A controller of the job (an engine, an API server, a driver) is in a lock, a call or "
    "a coroutine that holds up its event loop; or somebody waits for its answer.",
    excluded="The controller waits for requests itself, and nobody is connected who has asked for "
    "anything: the job is idle. A rank is in a collective or in the model: that one is looked at.",
    confidence=LIKELY,
    next_steps=("Look at the stacks of the controller",),
    find=_stuck,
    states=ALWAYS,
    complete="it rests on the stacks and connections of the controllers, which are read by then",
)
