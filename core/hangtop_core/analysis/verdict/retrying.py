"""Ranks that sleep between two attempts: mostly for a service that refuses them.

Nothing is open meanwhile, so no descriptor tells. What is the same for all of them: the sleep
stands in a loop, and in that loop an `except`, or a `try` before it, which shows what is tried.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.awaitedthread import FOR_THREADS
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.callers import block_at, conditions, line_of, loops, stack_of
from hangtop_core.analysis.verdict.endings import dead_thread
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.refusals import refusal
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, who
from hangtop_core.analysis.verdict.steps import dump_step, on
from hangtop_core.model.frames import is_library, package, place, plain_name, where
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.attempts import Again
    from hangtop_core.analysis.verdict.callers import Block
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Frame
    from hangtop_core.text.commands import Step

_FRAMES = 8
"""Own frames that know what they stand in."""
SERVICE = re.compile(
    r"Connection|URLError|HTTPError|HTTPStatus|Request(s)?(Error|Exception)|requests\.|urlopen"
    r"|gaierror|RpcError|grpc\.|BotoCore|ClientError|EndpointError|Transport|aiohttp|httpx?\."
    r"|socket\.|\.connect\(|create_connection|ServiceUnavailable|Unreachable|NewConnection"
)
"""Errors and calls of network clients."""
_AGAIN = re.compile(r"(^|/)(tenacity|backoff|retrying|stamina|retry)(/|\.py$)")
"""Libraries that call again what has failed."""
_RETRIES = re.compile(r"retry|retries|retrier|back_?off", re.IGNORECASE)
_NOSERVICE = re.compile(
    r"File(NotFound|Exists)|PermissionError|IsADirectory|\bopen\(|\.load\(|Memory|queue\.|Empty|Full\b"
    r"|BlockingIOError|Lock|DistStore|Subprocess|CalledProcess|KeyError|IndexError|ValueError"
)
"""What fails for another reason than that nobody answers."""
BY_NAME = 0.75
"""Confidence where only names tell that it is a lock, or a service."""


class Round(NamedTuple):
    """A loop in which somebody sleeps between two attempts, or a function that calls itself."""

    frame: Frame
    loop: Block | None
    """None where the function calls itself."""
    tried: Block | None
    """The first statement of the `try` in it."""
    caught: Block | None
    """The `except` in it that the sleep stands in."""
    asked: tuple[Block, ...] = ()
    """Conditions in it that the sleep stands under."""

    @property
    def at(self) -> str:
        """`the loop at cache.py:29 (`while True:`)`, or what calls itself."""
        if self.loop is None:
            return f"{plain_name(self.frame.name)}, which calls itself at {place(self.frame)},"
        return f"the loop at {block_at(self.frame, self.loop)}"

    @property
    def texts(self) -> str:
        """All of it, to look for words in."""
        blocks = (self.loop, self.tried, self.caught, *self.asked)
        return " ".join(block[1] for block in blocks if block)


def round_in(stack: Sequence[Frame]) -> Round | None:
    """The innermost loop in which a thread sleeps, where what is in it is known."""
    own = [frame for frame in stack if not is_library(frame)]
    for frame in own[:_FRAMES]:
        around = loops(frame)
        if around is None:
            return None
        loop = around[-1] if around else None
        if loop is None and not (frame.beside and _twice(own, frame)):
            continue
        begins = loop[0] if loop is not None else 0
        inside = [one for one in frame.beside or () if one[0] > begins]
        asked = tuple(one for one in conditions(frame) if one[0] > begins)
        return Round(frame, loop, *_tried(inside), asked)
    return None


def _twice(own: Sequence[Frame], frame: Frame) -> bool:
    return sum((one.file, one.name) == (frame.file, frame.name) for one in own) > 1


def _tried(inside: Sequence[Block]) -> tuple[Block | None, Block | None]:
    """What is tried, and the `except` that is reached; of each `except` it comes right before."""
    for at in reversed(range(len(inside))):
        if inside[at][1].startswith("except"):
            return (inside[at - 1] if at else None), inside[at]
    tried = [one for one in inside if not one[1].startswith(("with", "async with", "finally"))]
    return (tried[-1] if tried else None), None


def goes_round(case: Case, left: Sequence[Subject]) -> Iterator[tuple[Subject, Round]]:
    """Who sleeps by turns in a loop that is known."""
    for subject in left:
        if subject.activity.kind != "sleep" or not wakes_up(subject.rank, subject.standing):
            continue
        found = round_in(stack_of(case.snapshot.stacks, subject))
        if found is not None:
            yield subject, found


def attempts(one: Round) -> str:
    """What is tried in a loop, as far as is known: `os.open(...)` at cache.py:31 fails ..."""
    told = ""
    if one.tried is not None:
        told = f"in {one.at} it tries `{one.tried[1]}` ({line_of(one.frame, one.tried)})"
        told += f", and sleeps in `{one.caught[1]}`" if one.caught is not None else ""
    return told or f"it looks again and again in {one.at}"


def round_facts(subject: Subject, one: Round) -> Iterator[Evidence]:
    """Where that loop is, and what is tried in it."""
    yield fact("stacks", subject.number, f"{where(one.frame)}: {attempts(one)}")


def _refused(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = [(s, one) for s, one in goes_round(case, left) if one.tried or one.caught]
    rounds = {id(s): one for s, one in found if SERVICE.search(one.texts)}
    for group in alike((s for s, _ in found if id(s) in rounds), lambda s: s.activity.site):
        first, one = group[0], rounds[id(group[0])]
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'tries', 'try')} again and again what fails, most "
                f"likely to reach a service, and {is_are(group, 'sleeps', 'sleep')} at "
                f"{first.activity.at}",
                case.since(first),
                f"meanwhile: {attempts(one)}{quoted(refusal(case, first), group)}",
            ),
            evidence=(
                *round_facts(first, one),
                *common_facts(case, group),
            ),
            steps=_refused_steps(first),
        )


def quoted(said: Again | None, group: Sequence[Subject]) -> str:
    """`; its log says again and again ...`, where it does."""
    log = "its log" if said is not None and said.own and len(group) == 1 else "the log"
    return f"; {log} says again and again `{said.line}`" if said is not None else ""


class Pause(NamedTuple):
    """Where a rank pauses between two attempts: itself, in its event loop, or in a thread."""

    text: str
    """`sleeps between two attempts of what fails`, of one rank."""
    at: str
    frames: tuple[Frame, ...]


def pause(case: Case, subject: Subject) -> Pause | None:
    """Where a subject pauses, where it may be between two attempts."""
    activity = subject.activity
    asleep = activity.kind == "sleep" and (activity.top != activity.site or _tells(subject))
    if activity.by_thread or not (asleep or activity.kind in FOR_THREADS):
        return None
    stack = stack_of(case.snapshot.stacks, subject)
    if asleep:
        return Pause("sleeps", activity.at, stack)
    if any("/asyncio/" in frame.file for frame in stack[:_FRAMES]):
        return Pause("waits in its event loop", activity.at, ())
    threads = threads_of(case, subject)
    able = [o for o in threads[1:] if o.reading.site and not is_library(o.reading.site)]
    able = [one for one in able if not one.idle]
    if len(able) != 1 or able[0].family != "sleep" or dead_thread(case, subject, threads):
        return None
    waits = f"waits in {activity.op or 'a queue'} at {activity.at} for its {able[0].name}, which"
    return Pause(f"{waits} sleeps", where(able[0].reading.site), able[0].frames)


def _again(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who pauses between two attempts, as a library, names or its log tell."""
    for group in alike(left, lambda s: (s.activity.site, s.activity.text)):
        first = group[0]
        rests = pause(case, first)
        if rests is None:
            continue
        one = round_in(rests.frames)
        by = again_by(rests.frames) or _by_name(one)
        turns = by or not rests.frames or one is not None
        said = refusal(case, first) if turns and (by or _runs(first)) else None
        if by is None and said is None:
            continue
        text = several(rests.text, group) + " between two attempts of what fails"
        text += "" if said else ", most likely to reach a service"
        text += f": {by} calls it again and again" if by else ","
        text = f"{who(group)} {text} at {rests.at} {case.since(first)}".rstrip()
        text += quoted(said, group)
        tried = one is not None and (one.tried or one.caught)
        yield Hit(
            subjects=group,
            summary=sentence(case, text),
            evidence=(
                *(round_facts(first, one) if one is not None and tried else ()),
                *common_facts(case, group),
            ),
            steps=_refused_steps(first),
            confidence=None if said else BY_NAME,
        )


def _tells(subject: Subject) -> bool:
    """Whether a sleep in the program's own code may be one between two attempts."""
    site = subject.activity.site
    return _runs(subject) or bool(site and any("except" in one[1] for one in site.beside or ()))


def _runs(subject: Subject) -> bool:
    return subject.activity.kind != "sleep" or wakes_up(subject.rank, subject.standing)


def again_by(stack: Sequence[Frame]) -> str | None:
    """The library that a thread sleeps in between two attempts."""
    top = next((frame for frame in stack if not frame.native), None)
    if top is None or not is_library(top) or "/torch/" in top.file:
        return None
    named = _AGAIN.search(top.file) or _RETRIES.search(top.name)
    return package(top.file) if named else None


def _by_name(one: Round | None) -> str | None:
    """The function of the program that calls again what has failed, as its names tell."""
    if one is None or one.caught is None or _NOSERVICE.search(one.texts):
        return None
    named = _RETRIES.search(f"{one.frame.name} {one.frame.short} {one.texts}")
    return one.frame.name.partition(".<locals>")[0] if named else None


def _refused_steps(subject: Subject) -> tuple[Step, ...]:
    connects = ("timeout", "20", "strace", "-f", "-e", "trace=connect", "-p", subject.pid)
    return (
        on(subject, *connects, why="see where it connects to, and what comes of it"),
        dump_step(subject, "--each --locals"),
        Advice("let attempts end after some time, with an error that names the service"),
    )


REFUSED = Rule(
    cause="remote-service-wait",
    title="A rank tries again and again to reach a service",
    seen="The main thread sleeps by turns in a loop, or in a function that calls itself, with an "
    "`except`, or after a `try`, that names errors or calls of a network client.",
    excluded="It looks for a lock file: `file-lock`. It waits on a socket: see below.",
    confidence=0.82,
    next_steps=("Look where it connects to", "Let attempts end after some time"),
    find=_refused,
    needs=(More("logs", "with what error its attempts fail"),),
)
TRIES_AGAIN = Rule(
    cause="remote-service-wait",
    title=REFUSED.title,
    seen="The main thread, or the one that it waits for, sleeps by turns in a loop, or waits in "
    "its event loop, and the newest lines of its log say more than once that a service fails (HTTP "
    f"429 or 5xx, refused, timed out). With confidence {BY_NAME} only names tell: a library that "
    "calls again what has failed (tenacity, backoff, retrying, stamina), or an `except` in a loop "
    "of a function named for retries.",
    excluded=REFUSED.excluded,
    confidence=0.85,
    next_steps=REFUSED.next_steps,
    find=_again,
    needs=(More("logs", "with what error its attempts fail"),),
)
