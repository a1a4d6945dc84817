"""Find the peer of a send or receive in the variables of torch's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from ..secrets.mask import mask_value

if TYPE_CHECKING:
    from ..ranks.rows import Row, Sample
    from ..wire.requests import Message

_CALLS = ("send", "recv", "send_object_list", "recv_object_list")
_NAMES = ("dst", "src")
"""Arguments that are ranks of the job (torch 2.13); `group_dst` would be a rank of the group."""
_FILE = "torch/distributed/distributed_c10d.py"


def passes(rows: List[Row]) -> bool:
    """Whether a stack is in torch's send or recv."""
    return any(row[0] in _CALLS and row[1].endswith(_FILE) for row in rows)


def ordered(main: int, result: Sample, wants: bool) -> List[Message]:
    """Return the threads, ``main`` first, with their variables masked.

    Unless the user ``wants`` variables, only the peers of sends and receives are kept.
    """
    if wants:
        kept = [dict(one, locals=_masked(one["locals"])) for one in result.threads]
    else:
        kept = [
            dict(one, locals=_ends(result.stacks[one["stack"]], one["locals"]))
            for one in result.threads
        ]
    return sorted(kept, key=lambda t: (t["tid"] != main, t["name"] != "MainThread"))


def _masked(variables: List[List[Message]]) -> List[List[Message]]:
    """Return variables by frame, with secrets in their values masked."""
    return [
        [dict(one, value=mask_value(one["name"], one["value"])) for one in frame]
        for frame in variables
    ]


def _ends(rows: List[Row], variables: List[List[Message]]) -> List[List[Message]]:
    """Return the peers by frame; empty where a stack neither sends nor receives."""
    if not passes(rows):
        return []
    return [
        [v for v in some if v["name"] in _NAMES and v["value"].isdigit()] if passes([row]) else []
        for row, some in zip(rows, variables)
    ]
