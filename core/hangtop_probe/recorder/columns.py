"""From a decoded flight-recorder dump to columns: the form in which recorders travel and are read.

A recorder holds up to thousands of entries whose texts repeat. `Columns` keeps every text once and
numbers in columns, about 35 bytes per entry. The head uses this module for files, the probe for
running ranks.

Formats: torch 2.4 writes version "2.1", 2.5 to 2.7 "2.4", 2.8 "2.9", from 2.9 on "2.10"; fields
came and went, and the two forms differ: JSON has no frames, 0 for an unknown time, text for the
counters of `pg_status`, and leaves out `entries` when there are none. Read from the recorder of
torch (FlightRecorderDetail.hpp) and from dumps of all these versions.

What is over: legacy NCCL entries end in state `completed`; one that is `retired` without it has
timed out. gloo and other backends that record through a hook never leave `scheduled`: there
`retired` and the group's last completed number tell (seen with torch 2.13). Operations of a
coalesced block have no state of their own; the block's last entry, `coalesced`, has it.
"""

from __future__ import annotations

import re
from array import array
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .recorderentry import MAX_FRAMES, clipped, normal, number

if TYPE_CHECKING:
    Call = Tuple[str, str, str, str, str]
    """name as recorded, input sizes, output sizes, input types, output types."""
    Site = Tuple[Tuple[str, str, int], ...]
    """A stack, innermost first: function, file, line."""
    Group = Tuple[str, str, Optional[str], Optional[int], Optional[int], int]
    """name, description, ranks as recorded, last number enqueued, last number completed, and the
    timeout of its last entry in milliseconds (0: not known)."""

SCHEDULED, STARTED, COMPLETED, STATE = 0, 1, 2, 3
"""Values of the lowest two bits of a flag, and their mask."""
RETIRED, P2P, DONE, PART = 4, 8, 16, 32
"""Bits of a flag: no longer watched; send or recv; judged to be over; one of a coalesced block."""

_LONGEST_MS = 2**53
MAX_ENTRIES = 200_000
"""Newest entries that are read of one dump; a ring of torch holds 2,000 by default."""
MAX_MEMBERS = 400_000
"""Characters of the list of a group's ranks."""
MAX_GROUPS = 60_000
ENDS = ("finished", "exception", "collective", "running")
"""How a rank ended: by itself, by an exception, by one that came out of a collective; `running` as
another one failed."""
STATEFUL = frozenset({"nccl", "xccl", "hccl", "rccl"})
"""Backends whose watchdog records completion. gloo, nccl2 and hooks do not."""

_FIELDS = (
    "process_group",
    "pg_id",
    "is_p2p",
    "collective_seq_id",
    "p2p_seq_id",
    "profiling_name",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "retired",
    "record_id",
    "time_created_ns",
)
_ROW = itemgetter(*_FIELDS)
_SHAPES = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_COUNTERS = ("last_enqueued_collective", "last_completed_collective")
_BROKEN = (LookupError, TypeError, ValueError, OverflowError, AttributeError)
_OPEN = bytes(not flag & DONE for flag in range(256))
"""Turns flags into marks: 1 for what is not over."""


class Status(NamedTuple):
    """The counters of a group of which only the number within this process is known."""

    pg_id: int
    enqueued: int
    completed: int


class Columns:
    """The recorder of one rank; every column has one item per entry, oldest first.

    ``group``, ``call`` and ``site`` hold indices into ``groups``, ``calls`` and ``sites``.
    """

    def __init__(self) -> None:
        self.version = ""
        self.library = ""
        self.groups: List[Group] = []
        self.calls: List[Call] = []
        self.sites: List[Site] = [()]
        self.statuses: List[Status] = []
        self.group_ids: Dict[int, str] = {}
        self.configured = False
        """Whether the ranks of groups are recorded and can be believed."""
        self.length = 0
        self.dropped = 0
        """Entries that could not be read."""
        self.wrapped = False
        """Whether older entries were overwritten, or left out."""
        self.newest_ns = 0
        self.timeout_ms = 0
        self.ended = ""
        """How the rank ended, if this was written at its end: one of `ENDS`."""
        self.why_ended = ""
        self.group = array("H")
        self.call = array("I")
        self.site = array("I")
        self.flag = b""
        self.seq = array("q")
        self.record = array("q")
        self.created = array("q")

    def newest(self, limit: int) -> None:
        """Keep the newest ``limit`` entries, and older ones from the first that is not over.

        Of those at most three times as many: a queue may be long.
        """
        first = self.flag.translate(_OPEN).find(1)
        start = self.length - limit
        if first >= 0:
            start = max(min(start, first), self.length - 4 * limit)
        if start > 0:
            self._drop(start)
            self.wrapped = True

    def since(self, start_ns: int) -> int:
        """Drop what was recorded before a time, and so by others; return how many entries."""
        count = next((n for n, at in enumerate(self.created) if not 0 < at < start_ns), self.length)
        if count:
            self._drop(count)
        return count

    def _drop(self, count: int) -> None:
        for name in ("group", "call", "site", "flag", "seq", "record", "created"):
            setattr(self, name, getattr(self, name)[count:])
        self.length -= count
        self._forget("call", "calls")
        self._forget("site", "sites")

    def _forget(self, column: str, texts: str) -> None:
        """Drop texts that no entry has any more."""
        old, used = getattr(self, texts), getattr(self, column)
        ids = _Ids()
        setattr(self, column, array("I", map(ids.__getitem__, used)))
        setattr(self, texts, [old[number] for number in ids])


def reduce(dump: object) -> Columns:
    """Turn a decoded dump, a mapping with `version`, `entries`, `pg_config` ..., into columns.

    Raises:
        ValueError: it is no dump of a flight recorder; says why.
    """
    if not isinstance(dump, Mapping):
        raise ValueError("holds a %s, not a flight-recorder dump" % type(dump).__name__)
    if not any(key in dump for key in ("version", "entries", "pg_config", "pg_status")):
        raise ValueError("has none of the keys of a flight-recorder dump")
    entries = dump.get("entries") or ()
    if not isinstance(entries, Sequence) or isinstance(entries, (str, bytes)):
        raise ValueError("its entries are no list")
    trace = Columns()
    trace.version = clipped(dump.get("version"), 40)
    trace.ended, trace.why_ended = _end(dump.get("hangtop"))
    trace.library = clipped(dump.get("comm_lib_version") or dump.get("nccl_version"), 80)
    cut = len(entries) > MAX_ENTRIES
    entries = entries[-MAX_ENTRIES:]
    statuses = _statuses(dump.get("pg_status"))
    try:
        _fill(trace, entries, dump.get("pg_config"), statuses)
    except _BROKEN:
        clean = [one for one in map(normal, entries) if one is not None]
        trace.dropped = len(entries) - len(clean)
        _fill(trace, clean, dump.get("pg_config"), statuses)
    if trace.ended in ("finished", "exception"):
        _close(trace)
    records = trace.record
    if trace.length:
        trace.wrapped = cut or records[0] > 0 or records[-1] - records[0] + 1 != trace.length
    return trace


def _end(written: object) -> Tuple[str, str]:
    """How a rank ended and why, as the hook of `hangtop run` adds it to what it writes then."""
    if not isinstance(written, Mapping) or written.get("ended") not in ENDS:
        return "", ""
    return written["ended"], clipped(written.get("why"), 300)


class _Ids(Dict[Any, int]):
    """Numbers keys in the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self._next = count().__next__

    def __missing__(self, key: Any) -> int:
        number = self[key] = self._next()
        return number


def _fill(
    trace: Columns, entries: Sequence[Any], config: object, statuses: Dict[int, Status]
) -> None:
    rows = list(zip(*map(_ROW, entries))) or [()] * len(_FIELDS)
    told: Dict[str, Sequence[Any]] = dict(zip(_FIELDS, rows))
    trace.length = len(entries)
    names = list(map(itemgetter(0), told["process_group"]))
    groups = _Ids()
    group = list(map(groups.__getitem__, names))
    if len(groups) > MAX_GROUPS:
        raise ValueError("too many groups")
    trace.group = array("H", group)
    _calls(trace, told)
    kinds = zip(told["state"], told["retired"], told["is_p2p"], told["profiling_name"])
    trace.flag = bytes(map(_Flags().__getitem__, kinds))
    numbers = zip(told["collective_seq_id"], told["p2p_seq_id"], told["is_p2p"])
    trace.seq = array("q", (alone if p2p else shared for shared, alone, p2p in numbers))
    trace.record = array("q", told["record_id"])
    trace.created = array("q", (at or 0 for at in told["time_created_ns"]))
    trace.newest_ns = max(trace.created, default=0)
    _sites(trace, entries)
    limits = [min(max(number(one.get("timeout_ms")), 0), _LONGEST_MS) for one in entries]
    used = dict(zip(names, zip(told["process_group"], told["pg_id"], limits)))
    _groups(trace, used, config, statuses)
    _settle(trace)
    trace.timeout_ms = max(limits[-50:], default=0)


def _calls(trace: Columns, told: Mapping[str, Sequence[Any]]) -> None:
    shapes = (map(str, told[name]) for name in _SHAPES)
    calls = _Ids()
    trace.call = array("I", map(calls.__getitem__, zip(told["profiling_name"], *shapes)))
    trace.calls = [
        (clipped(name, 200), clipped(a, 300), clipped(b, 300), clipped(c, 300), clipped(d, 300))
        for name, a, b, c, d in calls
    ]


class _Flags(Dict[Any, int]):
    """Flags of (state, retired, is_p2p, name)."""

    def __missing__(self, key: Tuple[Any, Any, Any, Any]) -> int:
        state, retired, p2p, name = key
        flag = _STATES.get(state, STATE) | (RETIRED if retired else 0) | (P2P if p2p else 0)
        over = state == "completed" or (retired and _backend(name) not in STATEFUL)
        self[key] = flag = flag | (DONE if over else 0)
        return flag


def _settle(trace: Columns) -> None:
    """Set what is over of what an entry does not say of itself."""
    hooked = [_backend(one[0]) not in STATEFUL for one in trace.calls]
    block = ["coalesced" in one[0] for one in trace.calls]
    if not any(hooked) and not any(block):
        return
    flags = bytearray(trace.flag)
    group, seq, call = trace.group, trace.seq, trace.call
    completed = [one[4] or 0 for one in trace.groups]
    told: Dict[Tuple[int, int, int], int] = {}
    for at in range(len(flags) - 1, -1, -1):
        flag = flags[at]
        key = (group[at], flag & P2P, seq[at])
        if block[call[at]]:
            told[key] = flag & DONE
        elif key in told:
            flags[at] = flag & ~DONE | told[key] | PART
        elif hooked[call[at]] and not flag & (DONE | P2P) and 0 < seq[at] <= completed[group[at]]:
            flags[at] |= DONE
    trace.flag = bytes(flags)


def _close(trace: Columns) -> None:
    """Set all over that has no state of its own: a rank that has ended waits for nothing.

    gloo notes somewhat later that an operation is over.
    """
    hooked = [_backend(one[0]) not in STATEFUL for one in trace.calls]
    pairs = zip(trace.flag, trace.call)
    trace.flag = bytes(flag | DONE if hooked[call] else flag for flag, call in pairs)


def _sites(trace: Columns, entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries or "frames" not in entries[-1]:
        trace.site = array("I", bytes(4 * len(entries)))
        return
    # Entries share the dictionaries of their frames, so the identities tell equal stacks apart.
    ids = _Ids()
    stacks = [(one.get("frames") or ())[:MAX_FRAMES] for one in entries]
    keys = [tuple(map(id, stack)) for stack in stacks]
    trace.site = array("I", map(ids.__getitem__, keys))
    distinct = dict(zip(keys, stacks))
    frames = {id(frame): frame for stack in distinct.values() for frame in stack}
    made = {at: _frame(frame) for at, frame in frames.items()}
    trace.sites = [tuple(made[at] for at in key) for key in ids]


def _frame(frame: Mapping[str, Any]) -> Tuple[str, str, int]:
    line = frame.get("line")
    return (
        clipped(frame.get("name"), 200),
        clipped(frame.get("filename"), 400),
        line if isinstance(line, int) and 0 <= line < 1 << 31 else 0,
    )


def _backend(name: str) -> str:
    """`nccl` of `nccl:all_reduce`; empty where the name does not say."""
    return name.partition(":")[0].lower() if ":" in name else ""


def _groups(
    trace: Columns,
    used: Dict[str, Tuple[Sequence[str], int, int]],
    config: object,
    statuses: Dict[int, Status],
) -> None:
    """Groups that entries name, then those that only the configuration knows."""
    known = _config(config)
    trace.configured = bool(known)
    found: List[Group] = []
    for name, pg_id, timeout_ms in used.values():
        uid, desc = (*(clipped(part, 200) for part in name), "", "")[:2]
        status = statuses.pop(pg_id, None)
        trace.group_ids[pg_id] = uid
        info = known.pop(uid, None)
        found.append(
            (
                uid,
                desc or (info[1] if info else ""),
                info[2] if info else None,
                status.enqueued if status else None,
                status.completed if status else None,
                timeout_ms,
            )
        )
    trace.groups = [*found, *list(known.values())[: MAX_GROUPS - len(found)]]
    trace.statuses = list(statuses.values())


def _config(config: object) -> Dict[str, Group]:
    """Groups of `pg_config`. gloo registers all of them under an empty name: not to be believed."""
    found: Dict[str, Group] = {}
    for uid, info in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(info, Mapping) or not uid:
            continue
        members = info.get("ranks")
        ranks = members if isinstance(members, str) else str(members)
        name = clipped(uid, 200)
        members = short_members(ranks[:MAX_MEMBERS])
        found[name] = (name, clipped(info.get("desc"), 200), members, None, None, 0)
    return found


@lru_cache(maxsize=64)
def short_members(text: str) -> str:
    """`[0, 1, 2, 3, 8]` as `[0-3, 8]`, in the same order; anything else as it is.

    Each of 8,192 ranks describes the default group, by 49 kB as torch writes it.
    """
    if not re.fullmatch(r"\[\d{1,9}(?:, \d{1,9})*\]", text):
        return text
    runs: List[List[int]] = []
    for rank in map(int, text[1:-1].split(", ")):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return f"[{', '.join(str(a) if a == b else f'{a}-{b}' for a, b in runs)}]"


def _statuses(status: object) -> Dict[int, Status]:
    found = {}
    for key, values in status.items() if isinstance(status, Mapping) else ():
        try:
            enqueued, completed = (max(int(values[name]), 0) for name in _COUNTERS)
            found[int(key)] = Status(int(key), enqueued, completed)
        except _BROKEN:
            continue
    return found
