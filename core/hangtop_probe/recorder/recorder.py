"""The `recorder` request: the flight recorders of ranks, each read by `rankrecorder`."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..wire.requests import Message, Request, pids_of
from .rankrecorder import Reading

if TYPE_CHECKING:
    from ..node import permission
    from ..wire.tools import Tools
    from .recorderways import Way

_WHY = ("start", "failure", "ways", "source", "path")
"""What does not change as long as there is nothing to read, for the same reason."""
MAX_TOLD = 4096
"""Processes of which is remembered what was said: a node has ever new ones."""
_PART_KINDS = ("calls", "sites", "groups")


def handle(
    request: Request, rights: permission.Rights, tools: Tools, told: Dict[int, str]
) -> Message:
    """Answer `recorder`: a piece per process. Calls, stacks and groups are sent once for all.

    With ``news``, what says once more why there is nothing, as ``told`` has it, is left out.
    """
    message = request.message
    again = bool(message.get("news"))
    pids, teller = pids_of(message), Teller()
    numbers = message.get("ranks") or {}
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 4)) as pool:

        def one(pid: int) -> None:
            request.check()
            number = numbers.get(str(pid))
            rank = number if isinstance(number, int) else None
            reading = Reading(pid, rank, message, tools, request.cancelled)
            piece = reading.run(rights)
            why = json.dumps([piece.get(key) for key in _WHY]) if "trace" not in piece else ""
            same = bool(why) and told.get(pid) == why
            if len(told) >= MAX_TOLD:
                told.clear()
            told[pid] = why
            if not (again and same):
                request.piece(lambda: teller.tell(piece))

        for job in [pool.submit(one, pid) for pid in pids]:
            job.result()
    request.check()
    return {"pids": len(pids)}


class Teller:
    """Says every call, stack and group of a request once, and then only its number."""

    def __init__(self) -> None:
        self._known: Dict[str, Dict[str, str]] = {kind: {} for kind in _PART_KINDS}

    def tell(self, piece: Message) -> Message:
        """Return a piece with the numbers, and with the parts that were not told before."""
        trace = piece.get("trace")
        if trace is None:
            return piece
        parts: Dict[str, Dict[str, Any]] = {}
        trace = dict(trace)
        for kind in _PART_KINDS:
            known, keys = self._known[kind], []
            for part in trace[kind]:
                text = json.dumps(part)
                key = known.get(text)
                if key is None:
                    key = known[text] = str(len(known))
                    parts.setdefault(kind, {})[key] = part
                keys.append(key)
            trace[kind] = keys
        return dict(piece, trace=trace, parts=parts)


def look(pid: int, rank: Optional[int], rights: permission.Rights, tools: Tools) -> List[Way]:
    """Return how every way to a rank's recorder stands, without reading anything by it."""
    return Reading(pid, rank, {}, tools, threading.Event()).look(rights)
