"""To or from whom a rank sends or receives, as the variables of torch's own functions say."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from ..secrets.mask import mask_value

if TYPE_CHECKING:
    from ..ranks.rows import Row, Sample
    from ..wire.requests import Message

_CALLS = ("send", "recv", "send_object_list", "recv_object_list")
_NAMES = ("dst", "src")
"""Arguments of these that are ranks of the job, torch 2.13; `group_dst` is one of a group."""
_FILE = "torch/distributed/distributed_c10d.py"


def passes(rows: List[Row]) -> bool:
    """Whether a stack is in torch's send or recv."""
    return any(row[0] in _CALLS and row[1].endswith(_FILE) for row in rows)


def ordered(main: int, result: Sample, wants: bool) -> List[Message]:
    """Thread ``main`` first; of variables that only we wanted, the ends of sends and receives."""
    if wants:
        kept = [dict(one, locals=_masked(one["locals"])) for one in result.threads]
    else:
        kept = [
            dict(one, locals=_ends(result.stacks[one["stack"]], one["locals"]))
            for one in result.threads
        ]
    return sorted(kept, key=lambda t: (t["tid"] != main, t["name"] != "MainThread"))


def _masked(variables: List[List[Message]]) -> List[List[Message]]:
    """By frame, with what looks like a secret in their values masked."""
    return [
        [dict(one, value=mask_value(one["name"], one["value"])) for one in frame]
        for frame in variables
    ]


def _ends(rows: List[Row], variables: List[List[Message]]) -> List[List[Message]]:
    """By frame; empty where a stack neither sends nor receives."""
    if not passes(rows):
        return []
    return [
        [v for v in some if v["name"] in _NAMES and v["value"].isdigit()] if passes([row]) else []
        for row, some in zip(rows, variables)
    ]
