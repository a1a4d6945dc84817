"""Reports of NCCL's RAS about a job, and the parser of their JSON form.

JSON comes from NCCL 2.28.7 on (`SET FORMAT json`), with a comma missing in 2.28.9; text from 2.24
on, which names single ranks only where they are few (NCCL: src/ras/client_support.cc of 2.24 to
2.30). Counts are of *launched* operations, never of finished ones, and only of five collectives:
equal counts on all ranks do not prove progress. Ranks are numbered within a communicator;
`Member.host` and `pid` identify the process.

The answer is untrusted. Only differences are kept: a job of thousands of ranks that agree needs a
few lines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct, field

from hangtop_core.text.clean import Text, clean

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEXT = 32 << 20
"""Maximum characters of an answer."""
LISTED = 4096
"""Maximum ranks of one set that are named; the others are counted."""
STATES = {0: "RUNNING", 7: "INIT"}
"""Names by `init_state`, a ncclResult_t (nccl.h): success, in progress; others are errors."""
_COMMA = re.compile(r'("nvml_dev": -?\d{1,9})(\s{1,40}"status")')
"""The place where 2.28.9 omits a comma."""


class Member(Struct, frozen=True, gc=False):
    """One rank of a communicator."""

    rank: int
    """Rank within the communicator."""
    host: Text = ""
    """Numeric address of its bootstrap interface; empty where not reported."""
    pid: int = -1
    gpu: int = -1
    """CUDA device of the process."""


class Level(Struct, frozen=True):
    """Ranks of a communicator that have launched equally many operations of a kind."""

    op: str
    """`AllReduce`; empty before NCCL 2.26, which counts all kinds as one."""
    count: int
    size: int
    members: tuple[Member, ...] = ()
    """Members, but not all of many; none where the text does not name them."""


class Lost(Struct, frozen=True, gc=False):
    """A rank of a communicator that gave RAS no answer."""

    member: Member
    dead: bool = False
    """Given up for good, after a minute without an answer."""
    unresponsive: bool = True
    """False where it answers, but says that it is no member."""


class Status(Struct, frozen=True):
    """Ranks of a communicator in one state: INIT, RUNNING, FINALIZE, ABORT, NOCOMM, or an error."""

    name: str
    size: int
    members: tuple[Member, ...] = ()


class Communicator(Struct, frozen=True):
    """One communicator, as far as its ranks differ."""

    hash: str
    size: int
    """Number of its ranks; 0 where not reported."""
    lost: tuple[Lost, ...] = ()
    lost_count: int = 0
    levels: tuple[Level, ...] = ()
    """For each kind of operation whose counts differ: ranks by count, the highest first."""
    statuses: tuple[Status, ...] = ()
    """The most frequent first; a single one when all are equal."""


class Ras(Struct, frozen=True):
    """A report, or why there is none."""

    at: float
    version: Text = ""
    form: Text = ""
    address: Text = ""
    took_s: float = 0.0
    communicators: tuple[Communicator, ...] = ()
    lost: tuple[Lost, ...] = ()
    """Processes without an answer, from a text; their `rank` is -1."""
    timeouts: int = 0
    asked: bool = True
    """Whether ranks received the request."""
    whole: bool = True
    """Whether the answer was complete."""
    failure: Text | None = None
    fix: Text | None = None


class BadReportError(ValueError):
    """The answer is no report of RAS."""


_Number = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
_Count = Annotated[int, Meta(ge=0)]


class _State(Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = True
    considered_dead: bool = False


class _Rank(Struct):
    rank: _Number
    host: Text = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    status: _State | None = None
    collective_counts: Annotated[dict[str, _Count], Meta(max_length=64)] = field(
        default_factory=dict
    )

    def member(self) -> Member:
        host = "" if self.host == "unknown" else clean(self.host, 80)
        return Member(self.rank, host, self.pid, self.cuda_dev)


class _Communicator(Struct):
    hash: Text = ""
    size: _Number = 0
    missing_ranks_count: _Number = 0
    ranks: list[_Rank] = field(default_factory=list)
    missing_ranks: list[_Rank] = field(default_factory=list)


class _Collection(Struct):
    timeouts_count: _Number = 0


class _Document(Struct):
    communicators: list[_Communicator]
    nccl_version: Text = ""
    ras: _Collection = field(default_factory=_Collection)


_DOCUMENT = msgspec.json.Decoder(_Document)


def from_json(text: str, at: float = 0.0) -> Ras:
    """Read an answer in JSON, that of 2.28.9 included.

    Raises:
        BadReportError: the text is cut off, or is no such report.
    """
    if len(text) > MAX_TEXT:
        raise BadReportError(f"has more than {MAX_TEXT >> 20} million characters")
    try:
        try:
            document = _DOCUMENT.decode(text)
        except msgspec.DecodeError:
            document = _DOCUMENT.decode(_COMMA.sub(r"\1,\2", text))
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise BadReportError(clean(str(error), 200)) from error
    return Ras(
        at=at,
        version=clean(document.nccl_version, 40),
        form="json",
        communicators=tuple(map(_communicator, document.communicators)),
        timeouts=max(document.ras.timeouts_count, 0),
    )


def _communicator(communicator: _Communicator) -> Communicator:
    lost = [
        Lost(rank.member(), state.considered_dead, state.unresponsive)
        for rank in communicator.missing_ranks[:LISTED]
        for state in [rank.status or _State()]
    ]
    states: dict[str, list[Member]] = defaultdict(list)
    for rank in communicator.ranks:
        states[_state(rank.status or _State())].append(rank.member())
    statuses = (
        Status(name, len(members), tuple(members[:LISTED]))
        for name, members in sorted(states.items(), key=lambda item: -len(item[1]))
    )
    return Communicator(
        hash=clean(communicator.hash, 40),
        size=max(communicator.size, 0),
        lost=tuple(lost),
        lost_count=max(communicator.missing_ranks_count, len(communicator.missing_ranks)),
        levels=tuple(_levels(communicator.ranks)),
        statuses=tuple(statuses),
    )


def _state(status: _State) -> str:
    if status.abort_flag:
        return "ABORT"
    if status.async_error not in (0, 7):
        return f"asynchronous error {status.async_error}"
    if status.finalize_called or status.destroy_flag:
        return "FINALIZE"
    return STATES.get(status.init_state, f"initialization error {status.init_state}")


def _levels(ranks: Iterable[_Rank]) -> Iterable[Level]:
    levels: dict[str, dict[int, list[_Rank]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for op, count in rank.collective_counts.items():
            levels[op][count].append(rank)
    for op, by_count in levels.items():
        if len(by_count) < 2:
            continue
        total = sum(map(len, by_count.values()))
        for count in sorted(by_count, reverse=True)[:LISTED]:
            ranks_at = by_count[count]
            # The most frequent count is that of the waiting ranks, which need no names.
            named = ranks_at[:LISTED] if len(ranks_at) * 2 <= total else ()
            yield Level(clean(op, 40), count, len(ranks_at), tuple(rank.member() for rank in named))
