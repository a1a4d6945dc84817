"""One entry of a flight recorder, as any version of torch writes it, or as it was spoiled."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

_TOO_LARGE = 2**62
MAX_FRAMES = 64


def normal(entry: object) -> Optional[Dict[str, Any]]:
    """An entry of any version with all fields, of the right types; None when it is none."""
    if not isinstance(entry, Mapping):
        return None
    pg_id = number(entry.get("pg_id"))
    name = clipped(entry.get("profiling_name"), 200) or "?"
    pg = entry.get("process_group")
    group = [clipped(part, 200) for part in pg[:2]] if isinstance(pg, (list, tuple)) else []
    p2p = entry.get("is_p2p")
    told = entry.get("collective_seq_id", entry.get("seq_id"))
    if isinstance(told, int) and abs(told) >= _TOO_LARGE:
        return None
    seq = number(told)
    return {
        "process_group": tuple(group or [str(pg_id)]),
        "pg_id": pg_id,
        "is_p2p": bool(p2p) if p2p is not None else bool(re.search(r"\b(send|recv)\b", name)),
        "collective_seq_id": seq,
        "p2p_seq_id": number(entry.get("p2p_seq_id", seq)),
        "profiling_name": name,
        "input_sizes": entry.get("input_sizes") or [],
        "output_sizes": entry.get("output_sizes") or [],
        "input_dtypes": entry.get("input_dtypes") or [],
        "output_dtypes": entry.get("output_dtypes") or [],
        "state": clipped(entry.get("state"), 40),
        "retired": bool(entry.get("retired")),
        "record_id": number(entry.get("record_id")),
        "time_created_ns": number(entry.get("time_created_ns")),
        "timeout_ms": number(entry.get("timeout_ms")),
        "frames": _frames(entry.get("frames")),
    }


def _frames(value: object) -> List[Mapping[str, Any]]:
    """The frames of an entry, innermost first, without what is none."""
    stack = value[:MAX_FRAMES] if isinstance(value, (list, tuple)) else ()
    return [frame for frame in stack if isinstance(frame, Mapping)]


def number(value: object) -> int:
    """A number of an entry, also as text; 0 where it is none, or too large to be one."""
    if isinstance(value, str) and len(value) < 20:
        value = int(value) if re.fullmatch(r"-?[0-9]+", value) else 0
    if isinstance(value, float):
        value = int(value) if abs(value) < _TOO_LARGE else 0
    return value if isinstance(value, int) and abs(value) < _TOO_LARGE else 0


def clipped(value: object, limit: int) -> str:
    """A value as text of at most so many characters; None is empty."""
    return value[:limit] if isinstance(value, str) else "" if value is None else str(value)[:limit]
