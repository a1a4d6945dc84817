"""Requests for the data that rules need: reading at once, pauses of ranks only where allowed.

The rate is limited: one request per node, `AT_ONCE` per session, and each kind once a minute per
rank at most. Used on the session's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.connect.link import Link
    from hangtop_core.collect.collector import Collector
    from hangtop_core.collect.requests import Ask
    from hangtop_core.diagnosis import Diagnosis, Need, NeedKind

    Key = tuple[NeedKind, str, int]

AT_ONCE = 4
"""Maximum requests under way in a session."""
A_MINUTE = 16
"""Maximum requests begun per minute in a session, however many jobs have verdicts."""
AGAIN_S = 60.0
"""Seconds between two equal requests for a rank."""
LIMIT_S = 5.0
"""Seconds to wait for an answer; a later one still counts."""
PAUSED = 2
"""Maximum ranks of a session that are paused, each once, where allowed."""
PAUSE_LIMIT_S = 20.0
"""Seconds for the C frames of a rank: py-spy reads the symbols of all libraries before it stops
it."""


class _Begun(NamedTuple):
    at: float
    link: Link
    ask: Ask
    limit_s: float


class Needs:
    """The requests for needs of rules, and their states."""

    def __init__(self, collector: Collector, *, readonly: bool, allow_pause: bool) -> None:
        self._collector = collector
        self._readonly = readonly
        self._allow_pause = allow_pause and not readonly
        self._begun: dict[Key, _Begun] = {}
        self._paused: set[Key] = set()

    def take(self, diagnoses: Mapping[str, Diagnosis], now: float) -> Mapping[str, Diagnosis]:
        """Make the due requests for diagnoses; return these with the states of their needs."""
        self._begun = {k: begun for k, begun in self._begun.items() if now - begun.at < AGAIN_S}
        return {
            key: msgspec.structs.replace(
                diagnosis, needs=tuple(self._pursue(need, now) for need in diagnosis.needs)
            )
            if diagnosis.needs
            else diagnosis
            for key, diagnosis in diagnoses.items()
        }

    def _pursue(self, need: Need, now: float) -> Need:
        """Make the request of a need if it is due and allowed; return the need with its state."""
        pauses = need.kind == "native stacks" and need.state == "needs consent"
        if need.pid is None or not (need.state == "wanted" or pauses):
            return need
        key = (need.kind, need.node, need.pid)
        begun = self._begun.get(key)
        if begun is not None:
            return self._stands(need, begun, now)
        if self._readonly and (pauses or need.kind == "recorder"):
            return _with(need, "not possible", "--readonly: nothing is asked of a rank")
        if pauses and not self._may_pause(key):
            return need
        return self._begin(need, key, now, pauses=pauses)

    def _begin(self, need: Need, key: Key, now: float, *, pauses: bool) -> Need:
        """Send the request if its node can take one; return the need with its state."""
        _, node, pid = key
        link = self._collector.links.get(node)
        if link is None or not link.can_ask:
            return _with(need, "not possible", "its node does not answer")
        ask = self._ask(need, pid)
        if ask.op in link.unsupported:
            return _with(need, "not possible", "it cannot be asked for the way its node is reached")
        gone = self._collector.store.live(node, pid) is None
        if gone or not self._has_capacity(node):
            return need  # the files of an exited process are read anyway
        self._begun[key] = _Begun(now, link, ask, PAUSE_LIMIT_S if pauses else LIMIT_S)
        if pauses:
            self._paused.add(key)
        if ask.op == "log":
            self._collector.read_log(link, ask)
        else:
            self._collector.ask_unattended(link, ask)
        return _with(need, "asked")

    def _stands(self, need: Need, begun: _Begun, now: float) -> Need:
        if not self._under_way(begun):
            return _with(need, "not possible", "it was asked for, and nothing came")
        if now - begun.at < begun.limit_s:
            return _with(need, "asked")
        return _with(need, "not possible", f"no answer within {begun.limit_s:.0f} s")

    def _under_way(self, begun: _Begun) -> bool:
        return begun.ask.op in self._collector.busy(begun.link.name)

    def _may_pause(self, key: Key) -> bool:
        return self._allow_pause and key not in self._paused and len(self._paused) < PAUSED

    def _has_capacity(self, node: str) -> bool:
        """Return whether a node has no request under way, and few other nodes have."""
        begun = self._begun.values()
        return (
            len(begun) < A_MINUTE
            and sum(map(self._under_way, begun)) < AT_ONCE
            and not self._collector.busy(node)
        )

    def _ask(self, need: Need, pid: int) -> Ask:
        asks = self._collector.asks
        if need.kind == "descriptors":
            return asks.descriptors([pid], by_itself=True)
        if need.kind == "recorder":
            return asks.recorder(need.node, [pid], by_itself=True)
        if need.kind == "logs":
            return asks.log(need.node, [pid], by_itself=True)
        if need.kind == "native stacks":
            return asks.stacks([pid], "native", deadline=PAUSE_LIMIT_S, by_itself=True)
        return asks.stacks([pid], by_itself=True)


def _with(need: Need, state: str, reason: str = "") -> Need:
    return msgspec.structs.replace(need, state=state, told=reason)
