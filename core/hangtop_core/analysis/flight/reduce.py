"""From a decoded flight-recorder dump to a `Trace`.

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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any

from hangtop_core.analysis.flight.trace import (
    COMPLETED,
    DONE,
    P2P,
    PART,
    RETIRED,
    STARTED,
    Call,
    GroupInfo,
    Status,
    Trace,
)
from hangtop_core.model import Frame

MAX_ENTRIES = 200_000
"""Newest entries that are read of one dump; a ring of torch holds 2,000 by default."""
MAX_FRAMES = 64
MAX_GROUPS = 60_000
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
_STATES = {"scheduled": 0, "started": STARTED, "completed": COMPLETED}
_COUNTERS = ("last_enqueued_collective", "last_completed_collective")
_BROKEN = (KeyError, TypeError, ValueError, OverflowError, AttributeError)


def reduce(dump: object, rank: int, source: str = "") -> Trace:
    """Turn a decoded dump into a trace.

    Args:
        dump: what the file held: a mapping with `version`, `entries`, `pg_config`, ...
        rank: global rank; dumps do not hold it.
        source: where it is from, for people.

    Raises:
        ValueError: it is no dump of a flight recorder; says why.
    """
    if not isinstance(dump, Mapping):
        raise ValueError(f"holds a {type(dump).__name__}, not a flight-recorder dump")
    if not any(key in dump for key in ("version", "entries", "pg_config", "pg_status")):
        raise ValueError("has none of the keys of a flight-recorder dump")
    entries = dump.get("entries") or ()
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise ValueError("its entries are no list")
    trace = Trace(rank, source, _text(dump.get("version"), 40))
    trace.library = _text(dump.get("comm_lib_version") or dump.get("nccl_version"), 80)
    cut = len(entries) > MAX_ENTRIES
    entries = entries[-MAX_ENTRIES:]
    statuses = _statuses(dump.get("pg_status"))
    try:
        _fill(trace, entries, dump.get("pg_config"), statuses)
    except _BROKEN:
        clean = [one for one in map(_normal, entries) if one is not None]
        trace.dropped = len(entries) - len(clean)
        _fill(trace, clean, dump.get("pg_config"), statuses)
    records = trace.record
    if trace.length:
        trace.wrapped = cut or records[0] > 0 or records[-1] - records[0] + 1 != trace.length
    return trace


class _Ids(dict[Any, int]):
    """Numbers keys in the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self._next = count().__next__

    def __missing__(self, key: Any) -> int:
        number = self[key] = self._next()
        return number


def _fill(
    trace: Trace, entries: Sequence[Any], config: object, statuses: dict[int, Status]
) -> None:
    columns = list(zip(*map(_ROW, entries), strict=True)) or [()] * len(_FIELDS)
    (pgs, pg_ids, p2p, collective, peer_to_peer, names, ins, outs, in_types, out_types) = columns[
        :10
    ]
    states, retired, records, created = columns[10:]
    groups = _Ids()
    uids = list(map(itemgetter(0), pgs))
    group = list(map(groups.__getitem__, uids))
    if len(groups) > MAX_GROUPS:
        raise ValueError("too many groups")
    calls = _Ids()
    rows = zip(
        names, map(str, ins), map(str, outs), map(str, in_types), map(str, out_types), strict=True
    )
    trace.raw_call = array("I", map(calls.__getitem__, rows)).tobytes()
    trace.calls = tuple(
        Call(_text(row[0], 200), *(_text(part, 300) for part in row[1:])) for row in calls
    )
    flags = _Flags()
    trace.raw_flag = bytes(map(flags.__getitem__, zip(states, retired, p2p, names, strict=True)))
    seq = [b if alone else a for a, b, alone in zip(collective, peer_to_peer, p2p, strict=True)]
    trace.raw_seq = array("q", seq).tobytes()
    trace.raw_record = array("q", records).tobytes()
    trace.raw_created = array("q", (at or 0 for at in created)).tobytes()
    trace.length = len(entries)
    trace.raw_group = array("H", group).tobytes()
    _sites(trace, entries)
    _groups(trace, dict(zip(uids, zip(pgs, pg_ids, strict=True), strict=True)), config, statuses)
    _settle(trace)
    trace.newest_ns = max(trace.created, default=0)
    if entries and "timeout_ms" in entries[-1]:
        told = (one.get("timeout_ms") for one in entries[-50:])
        trace.timeout_ms = max((ms for ms in told if isinstance(ms, int)), default=0)


class _Flags(dict[Any, int]):
    """Flags of (state, retired, is_p2p, name)."""

    def __missing__(self, key: tuple[Any, Any, Any, Any]) -> int:
        state, retired, p2p, name = key
        flag = _STATES.get(state, 3) | (RETIRED if retired else 0) | (P2P if p2p else 0)
        backend = name.partition(":")[0].lower() if ":" in name else ""
        over = state == "completed" or (retired and backend not in STATEFUL)
        self[key] = flag = flag | (DONE if over else 0)
        return flag


def _settle(trace: Trace) -> None:
    """Set what is over of what an entry does not say of itself."""
    hooked = [one.backend.lower() not in STATEFUL for one in trace.calls]
    block = ["coalesced" in one.name for one in trace.calls]
    if not any(hooked) and not any(block):
        return
    flags = bytearray(trace.raw_flag)
    group, seq, call = trace.group, trace.seq, trace.call
    completed = [one.completed or 0 for one in trace.groups]
    told: dict[tuple[int, int, int], int] = {}
    for at in range(len(flags) - 1, -1, -1):
        flag = flags[at]
        key = (group[at], flag & P2P, seq[at])
        if block[call[at]]:
            told[key] = flag & DONE
        elif key in told:
            flags[at] = flag & ~DONE | told[key] | PART
        elif hooked[call[at]] and not flag & (DONE | P2P) and 0 < seq[at] <= completed[group[at]]:
            flags[at] |= DONE
    trace.raw_flag = bytes(flags)


def _sites(trace: Trace, entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries or "frames" not in entries[-1]:
        trace.sites = ((),)
        trace.raw_site = bytes(4 * len(entries))
        return
    # Entries share the dictionaries of their frames, so the identities tell equal stacks apart.
    ids = _Ids()
    stacks = [(one.get("frames") or ())[:MAX_FRAMES] for one in entries]
    keys = [tuple(map(id, stack)) for stack in stacks]
    trace.raw_site = array("I", map(ids.__getitem__, keys)).tobytes()
    distinct = dict(zip(keys, stacks, strict=True))
    frames = {id(frame): frame for stack in distinct.values() for frame in stack}
    made = {at: _frame(frame) for at, frame in frames.items()}
    trace.sites = tuple(tuple(made[at] for at in key) for key in ids)


def _frame(frame: Mapping[str, Any]) -> Frame:
    file = _text(frame.get("filename"), 400)
    line = frame.get("line")
    return Frame(
        _text(frame.get("name"), 200), file, short(file), line if isinstance(line, int) else 0
    )


def short(file: str) -> str:
    """A path without what all of them have in common: inside its package, or its last two parts."""
    inside = re.split(r"/(?:site|dist)-packages/|/lib/python\d\.\d+/", file)[-1]
    return inside if inside != file else "/".join(file.rsplit("/", 2)[-2:])


def _groups(
    trace: Trace,
    used: dict[str, tuple[Sequence[str], int]],
    config: object,
    statuses: dict[int, Status],
) -> None:
    """Groups that entries name, then those that only the configuration knows."""
    known = _config(config)
    trace.configured = bool(known)
    found = []
    for name, pg_id in used.values():
        uid, desc = (*(_text(part, 200) for part in name), "", "")[:2]
        status = statuses.pop(pg_id, None)
        trace.group_ids[pg_id] = uid
        info = known.pop(uid, None)
        found.append(
            GroupInfo(
                uid,
                desc or (info.desc if info else ""),
                info.members if info else None,
                status.enqueued if status else None,
                status.completed if status else None,
            )
        )
    trace.groups = (*found, *list(known.values())[: MAX_GROUPS - len(found)])
    trace.statuses = tuple(statuses.values())


def _config(config: object) -> dict[str, GroupInfo]:
    """Groups of `pg_config`. gloo registers all of them under an empty name: not to be believed."""
    found: dict[str, GroupInfo] = {}
    for uid, info in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(info, Mapping) or not uid:
            continue
        members = info.get("ranks")
        ranks = members if isinstance(members, str) else str(members)
        name = _text(uid, 200)
        found[name] = GroupInfo(name, _text(info.get("desc"), 200), short_members(ranks[:400_000]))
    return found


@lru_cache(maxsize=64)
def short_members(text: str) -> str:
    """`[0, 1, 2, 3, 8]` as `[0-3, 8]`, in the same order; anything else as it is.

    Each of 8,192 ranks describes the default group, by 49 kB as torch writes it.
    """
    if not re.fullmatch(r"\[\d{1,9}(?:, \d{1,9})*\]", text):
        return text
    runs: list[list[int]] = []
    for rank in map(int, text[1:-1].split(", ")):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return f"[{', '.join(str(a) if a == b else f'{a}-{b}' for a, b in runs)}]"


def _statuses(status: object) -> dict[int, Status]:
    found = {}
    for key, values in status.items() if isinstance(status, Mapping) else ():
        try:
            enqueued, completed = (max(int(values[name]), 0) for name in _COUNTERS)
            found[int(key)] = Status(int(key), enqueued, completed)
        except _BROKEN:
            continue
    return found


def _normal(entry: object) -> dict[str, Any] | None:
    """An entry of any version with all fields, of the right types; None when it is none."""
    if not isinstance(entry, Mapping):
        return None
    pg_id = _number(entry.get("pg_id"))
    name = _text(entry.get("profiling_name"), 200) or "?"
    pg = entry.get("process_group")
    group = [_text(part, 200) for part in pg[:2]] if isinstance(pg, list | tuple) else []
    p2p = entry.get("is_p2p")
    seq = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    frames = entry.get("frames")
    stack = frames[:MAX_FRAMES] if isinstance(frames, list | tuple) else ()
    return {
        "process_group": tuple(group or [str(pg_id)]),
        "pg_id": pg_id,
        "is_p2p": bool(p2p) if p2p is not None else bool(re.search(r"\b(send|recv)\b", name)),
        "collective_seq_id": seq,
        "p2p_seq_id": _number(entry.get("p2p_seq_id", seq)),
        "profiling_name": name,
        "input_sizes": entry.get("input_sizes") or [],
        "output_sizes": entry.get("output_sizes") or [],
        "input_dtypes": entry.get("input_dtypes") or [],
        "output_dtypes": entry.get("output_dtypes") or [],
        "state": _text(entry.get("state"), 40),
        "retired": bool(entry.get("retired")),
        "record_id": _number(entry.get("record_id")),
        "time_created_ns": _number(entry.get("time_created_ns")),
        "timeout_ms": _number(entry.get("timeout_ms")),
        "frames": [frame for frame in stack if isinstance(frame, Mapping)],
    }


def _number(value: object) -> int:
    if isinstance(value, str) and len(value) < 20:
        value = int(value) if value.lstrip("-").isdecimal() else 0
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**62 else 0
    return value if isinstance(value, int) and abs(value) < 2**62 else 0


def _text(value: object, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else "" if value is None else str(value)[:limit]
