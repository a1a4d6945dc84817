"""The conclusions of hangtop, as `hangtop diagnose --json` prints them: verdicts with evidence.

The JSON schema is `hangtop.diagnosis/1`; changes to it only ever add fields.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import is_key, pid_of, rank_name

SCHEMA = "hangtop.diagnosis/1"
HANG_AFTER_S = 30.0
"""Seconds without any progress after which a job that waits is called hung."""
STALLED_AFTER_S = 5.0
"""Seconds without progress below which nothing is called stalled, however plain the cause."""
FIRST_STACKS_S = 30.0
"""Seconds within which each process has given a stack, or the reason why not."""
NO_FIX = "none is known; the reason is all there is to go by"
"""The fix of a blind spot that has none."""
MAX_SUMMARY = 800
"""Maximum characters of the summary of a verdict, which quotes nodes."""
FAILED = "verdict"
"""The blind spot that reports a failure of hangtop's own analysis."""
REPORT_IT = "report it with the stacks: hangtop dump"

JobState = Literal["hung", "progressing", "slow", "starting", "idle", "exited", "unknown"]
"""State of a job. `slow` is `progressing` with steps that some ranks make long: no rank hangs.
`idle` is a server without requests."""
MAKES_PROGRESS: frozenset[JobState] = frozenset({"progressing", "slow", "idle"})
"""States in which no rank hangs."""

Source = Literal[
    "stacks", "flight", "process", "gpu", "network", "log", "kernel", "environment", "numerics"
]


MomentKind = Literal[
    "started", "watched", "sign", "stopped", "hung", "due", "left", "flight", "log", "kernel", "gpu"
]
"""What happened at a moment of the timeline: the job started, hangtop attached, a culprit made its
last progress, the last rank did, the wait became long enough to be called a hang, the first
operation times out, a rank left, or all ranks of a hung job; a collective was issued; or logs, the
kernel or a GPU reported something."""


class Culprit(Struct, frozen=True, gc=False):
    """A rank that a verdict names as the culprit."""

    rank: int | None
    node: str
    pid: int | None
    local_rank: int | None = None
    gpu: int | None = None
    role: str = ""
    """Title of a process that is no rank: a controller as it calls itself."""
    about: str = ""
    """Label of a rank without a number: its title, GPU or script."""

    @property
    def name(self) -> str:
        """Return `rank 2 (gpu03, pid 4711)`, or `rank ? (gpu03, pid 4711, VLLM::Worker_TP1)`."""
        if self.rank is None:
            where = ", ".join(
                filter(None, (clean(self.node), f"pid {self.pid}" if self.pid else ""))
            )
            return f"{clean(self.role)} ({where})" if self.role else "rank ?"
        return rank_name(self.rank, clean(self.about), node=clean(self.node), pid=self.pid)


class Evidence(Struct, frozen=True, gc=False):
    """One observed fact with its source."""

    source: Source
    rank: int | None
    text: str


class Verdict(Struct, frozen=True, gc=False):
    """Cause, culprits, evidence and next step."""

    cause: str
    confidence: float
    culprits: tuple[Culprit, ...]
    victims: tuple[int, ...]
    summary: str
    evidence: tuple[Evidence, ...]
    next_steps: tuple[str, ...]
    weaker: str = ""
    """Why it ranks below the first verdict; empty for the first."""
    apart: bool = False
    """Whether it is a separate fault beside the first, not another explanation of the same."""
    commands: tuple[str, ...] = ()
    """The command in each next step; empty where a step has none."""


NeedKind = Literal["stacks", "descriptors", "recorder", "logs", "kernel log", "native stacks"]
NeedState = Literal["wanted", "asked", "answered", "not possible", "needs consent"]


class Need(Struct, frozen=True, gc=False):
    """Data of one rank that would decide between two explanations, and the state of the request."""

    kind: NeedKind
    rank: int | None
    node: str
    pid: int | None
    why: str
    """What the answer would decide."""
    state: NeedState = "wanted"
    """`wanted`: not requested yet, as in a capture; `needs consent`: the request touches the
    rank."""
    told: str = ""
    """Why it is not possible; for `needs consent`, the command that does it."""
    key: str = ""
    """The key of the Rank or Recorder screen that requests it."""


class Exclusion(Struct, frozen=True):
    """Causes that are ruled out, and the evidence."""

    causes: tuple[str, ...]
    """Codes of the verdicts that are ruled out for this reason."""
    text: str
    looked_at: str


class Moment(Struct, frozen=True, gc=False):
    """One moment of the timeline of a job."""

    at: float
    """Seconds since the epoch, on the clock of the machine where hangtop runs."""
    kind: MomentKind
    rank: int | None
    text: str


class BlindSpot(Struct, frozen=True):
    """Something that could not be observed, with the reason and the fix."""

    what: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    why: str
    fix: str
    command: str = ""
    """The command in the fix; empty where the fix has none, or more than one."""


class JobSummary(Struct, frozen=True):
    """The `job` of a diagnosis."""

    world_size: int | None
    ranks_seen: tuple[int, ...]
    nodes: tuple[str, ...]
    launcher: str | None
    id: str | None
    unnumbered: int = 0
    """Number of ranks whose rank number could not be read."""
    twice: tuple[int, ...] = ()
    """Ranks that more than one live process claims to be."""


class Ended(Struct, frozen=True):
    """When and why a job ended, and whether it hung until then."""

    at: float
    """When its last rank exited, or was last seen where no node of the job answers any more."""
    by: str = ""
    """What ended it, as far as logs or exit statuses show; else empty."""
    after_hanging_s: float | None = None
    """For how long it had hung; null where it did not hang until its end."""
    verdict_at: float | None = None
    """When the verdicts on that hang, which come first, were given: before the first rank
    exited."""


class Attempt(Struct, frozen=True):
    """Which attempt of torchrun runs: torchrun restarts all ranks when one fails."""

    number: int
    """Number of the attempt, from 1."""
    of: int | None = None
    """Maximum number of attempts; null where unknown."""


class PastAttempt(Struct, frozen=True):
    """An attempt that hangtop has seen end, and why it did."""

    number: int | None
    """Number of the attempt, from 1; null where unknown."""
    ended: Ended
    verdicts: tuple[Verdict, ...] = ()


class RequestWait(Struct, frozen=True, gc=False):
    """How a process of an idle server waits for requests."""

    who: str
    """`rank 0`, or a controller as it calls itself."""
    rank: int | None
    node: str
    pid: int
    text: str
    """`zmq recv at engine.py:13 (worker_busy_loop)`."""
    is_proven: bool = True
    """Whether it is known where requests come from: a port of its own, or a controller."""


class Diagnosis(Struct, frozen=True):
    """The result of `hangtop diagnose`; as JSON the schema `hangtop.diagnosis/1`."""

    schema: str
    hangtop: str
    observed_at: str
    observed_for_s: float
    state: JobState
    hung_for_s: float | None
    watchdog_in_s: float | None
    job: JobSummary | None
    verdicts: tuple[Verdict, ...] = ()
    blind_spots: tuple[BlindSpot, ...] = ()
    stalled_for_s: float | None = None
    """Seconds without any progress, also when that is not yet called hung."""
    ruled_out: tuple[Exclusion, ...] = ()
    timeline: tuple[Moment, ...] = ()
    """Moments, earliest first; the future ones last."""
    needs: tuple[Need, ...] = ()
    """Data that rules have asked for."""
    numbers: Evidence | None = None
    """The first inf or nan of the job, where its ranks check for it (`--detect-overflow`)."""
    ended: Ended | None = None
    """How the job ended; also where it hung when all of its nodes were lost."""
    attempt: Attempt | None = None
    """The present attempt of a job that torchrun may restart, or has restarted."""
    past_attempts: tuple[PastAttempt, ...] = ()
    """Earlier attempts that were seen to end, oldest first."""
    request_waits: tuple[RequestWait, ...] = ()
    """How the ranks and controllers of an `idle` job wait for requests."""

    @property
    def hung_until_end(self) -> bool:
        """Return whether the job is over, or all its nodes are lost, and it hung until then."""
        return self.ended is not None and self.ended.after_hanging_s is not None


def to_json(value: Any, indent: int | None = 2) -> bytes:
    """Encode a value, such as any struct of this module, as JSON.

    The output has ``indent`` spaces of indentation, or is one line where that is None. Characters
    that a terminal might obey or reorder are written as JSON escape sequences: the data are the
    same, and safe to look at.
    """
    data = _without_keys(msgspec.to_builtins(value))
    text = json.dumps(data, ensure_ascii=False, indent=indent)
    return _UNPRINTABLE.sub(_escaped, text).encode()


def _without_keys(data: Any) -> Any:
    """Replace the stand-ins for unknown rank numbers.

    A single stand-in becomes null. A list of ranks omits it, and a field beside the list has the
    pids: those omitted from `victims` are in `victims_pids`.
    """
    if isinstance(data, list | tuple):
        return [_without_keys(item) for item in data if not _is_key(item)]
    if not isinstance(data, dict):
        return None if _is_key(data) else data
    pids = {
        f"{name}_pids": sorted(map(pid_of, keys))
        for name, value in data.items()
        if isinstance(value, list | tuple) and (keys := list(filter(_is_key, value)))
    }
    return {name: _without_keys(value) for name, value in data.items()} | pids


def _is_key(value: Any) -> bool:
    return type(value) is int and is_key(value)


_UNPRINTABLE = re.compile(r"[^ -~\n]")


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]
