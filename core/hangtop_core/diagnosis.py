"""What hangtop concludes: verdicts with their evidence, as `hangtop diagnose --json` prints them.

The JSON schema is `hangtop.diagnosis/1`; changes to it only ever add.
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
"""Seconds without any progress below which nothing is called stalled, however plain the cause."""
FIRST_STACKS_S = 30.0
"""Seconds within which each process has given a stack, or says why not."""
NO_FIX = "none is known; the reason is all there is to go by"
"""The fix of a blind spot for which there is none."""
MAX_SUMMARY = 800
"""Characters of the summary of a verdict, which says what nodes have said."""
FAILED = "verdict"
"""The blind spot where hangtop itself has failed to conclude anything."""
REPORT_IT = "report it with the stacks: hangtop dump"

JobState = Literal["hung", "progressing", "slow", "starting", "idle", "exited", "unknown"]
"""`slow` is `progressing` with steps that some ranks make long: nobody hangs. `idle` is a server
that nobody asks for anything."""
MAKES_PROGRESS: frozenset[JobState] = frozenset({"progressing", "slow", "idle"})
"""States in which nobody hangs: what there is to do is done."""

Source = Literal[
    "stacks", "flight", "process", "gpu", "network", "log", "kernel", "environment", "numerics"
]


MomentKind = Literal[
    "started", "watched", "sign", "stopped", "hung", "due", "left", "flight", "log", "kernel", "gpu"
]
"""What happened at a moment of the timeline: the job started, hangtop began to watch, a rank that
is blamed last got anywhere, the last rank did, the wait was long enough to be called a hang, the
first operation times out, a rank left, or all of a job that hung; a collective was issued; or what
logs, the kernel or a GPU said."""


class Culprit(Struct, frozen=True, gc=False):
    """A rank the verdict blames."""

    rank: int | None
    node: str
    pid: int | None
    local_rank: int | None = None
    gpu: int | None = None
    role: str = ""
    """What it is, where it is no rank: a controller as it calls itself."""
    about: str = ""
    """What a rank without a number is told from others by: its title, GPU or script."""

    @property
    def name(self) -> str:
        """`rank 2 (gpu03, pid 4711)`, or `rank ? (gpu03, pid 4711, VLLM::Worker_TP1)`."""
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
    """Why it comes after the first verdict; empty for that one."""
    apart: bool = False
    """Whether it is a fault of its own beside the first, not another explanation of the same."""
    commands: tuple[str, ...] = ()
    """Of each next step the command in it; empty where it has none."""


NeedKind = Literal["stacks", "descriptors", "recorder", "logs", "kernel log", "native stacks"]
NeedState = Literal["wanted", "asked", "answered", "not possible", "needs consent"]


class Need(Struct, frozen=True, gc=False):
    """What would decide between an explanation and the next, of one rank, and how it stands."""

    kind: NeedKind
    rank: int | None
    node: str
    pid: int | None
    why: str
    """What it would tell."""
    state: NeedState = "wanted"
    """`wanted`: nobody has asked yet, as in a capture; `needs consent`: it touches the rank."""
    told: str = ""
    """Why it is not possible; of what needs consent, the command that does it."""
    key: str = ""
    """The key of the Rank or Recorder screen that does the same."""


class Exclusion(Struct, frozen=True):
    """What is ruled out, and by what was looked at."""

    causes: tuple[str, ...]
    """Codes of the verdicts that there are not for this reason."""
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
    """Something that could not be observed, with why and how to fix it."""

    what: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    why: str
    fix: str
    command: str = ""
    """The command in the fix; empty where that has none, or more than one."""


class JobSummary(Struct, frozen=True):
    """The `job` of a diagnosis."""

    world_size: int | None
    ranks_seen: tuple[int, ...]
    nodes: tuple[str, ...]
    launcher: str | None
    id: str | None
    unnumbered: int = 0
    """Ranks whose number could not be read."""
    twice: tuple[int, ...] = ()
    """Ranks that more than one live process claims to be."""


class Ended(Struct, frozen=True):
    """When and by what a job has ended, and whether it hung until then."""

    at: float
    """When its last rank left, or was last seen where no node of the job answers any more."""
    by: str = ""
    """What ended it, as far as logs or exit statuses tell; else empty."""
    after_hanging_s: float | None = None
    """For how long it had hung; null where it did not hang until its end."""
    verdict_at: float | None = None
    """When the verdicts on that hang were given, which come first: before anybody left."""


class Attempt(Struct, frozen=True):
    """Which attempt of torchrun runs: it starts all ranks again when one fails."""

    number: int
    """From 1."""
    of: int | None = None
    """How many there are at most; null where that is not known."""


class PastAttempt(Struct, frozen=True):
    """An attempt that hangtop has seen end, and why it did."""

    number: int | None
    """From 1; null where nobody counts."""
    ended: Ended
    verdicts: tuple[Verdict, ...] = ()


class RequestWait(Struct, frozen=True, gc=False):
    """By what a process of an idle server waits for requests."""

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
    """What `hangtop diagnose` prints; as JSON the schema `hangtop.diagnosis/1`."""

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
    """How long nothing that means progress has moved, also when that is not yet called hung."""
    ruled_out: tuple[Exclusion, ...] = ()
    timeline: tuple[Moment, ...] = ()
    """Earliest first; what is still to come stands last."""
    needs: tuple[Need, ...] = ()
    """What rules have asked for."""
    numbers: Evidence | None = None
    """The first inf or nan of the job, where its ranks look for one (`--detect-overflow`)."""
    ended: Ended | None = None
    """Of a job that has ended; and where it hung when all of its nodes were lost from sight."""
    attempt: Attempt | None = None
    """Of a job that torchrun may start again, or has."""
    past_attempts: tuple[PastAttempt, ...] = ()
    """Those before it that were seen to end, oldest first."""
    request_waits: tuple[RequestWait, ...] = ()
    """Of an `idle` job, by what its ranks and controllers wait for requests."""

    @property
    def hung_until_end(self) -> bool:
        """Whether the job is over, or out of sight, and hung until then."""
        return self.ended is not None and self.ended.after_hanging_s is not None


def to_json(value: Any, indent: int | None = 2) -> bytes:
    """Encode a value, such as any struct of this module, as JSON.

    With ``indent`` spaces of indentation, or in one line where that is None.
    What a terminal might obey, or show in another order, is written as an escape sequence of
    JSON: the data are the same, and looking at them is safe.
    """
    data = _without_keys(msgspec.to_builtins(value))
    text = json.dumps(data, ensure_ascii=False, indent=indent)
    return _UNPRINTABLE.sub(_escaped, text).encode()


def _without_keys(data: Any) -> Any:
    """Replace what stands for the number of a rank that has none, which is no number.

    Alone it is null. A list of ranks leaves it out, and beside it stand the pids: those left out
    of `victims` in `victims_pids`.
    """
    if isinstance(data, list | tuple):
        return [_without_keys(one) for one in data if not _is_key(one)]
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
