"""Abandoned connections of a link: each gets time to end, and is killed after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.attach.wire.router import Connections

AGAIN_S = 60.0
"""Seconds after which a killed connection that has not ended is killed once more."""


class Leaving:
    """Connections that have not ended yet, and when (monotonic) each is to be killed."""

    def __init__(self, engine: Connections, kill_s: float) -> None:
        """``kill_s`` is the seconds from the end of its input to killing it."""
        self._engine = engine
        self._kill_s = kill_s
        self._kill_at: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._kill_at)

    def add(self, conn: int, now: float) -> None:
        """Abandon a connection: its probe ends with its input."""
        self._engine.close_input(conn)
        self._kill_at[conn] = now + self._kill_s

    def closed(self, conn: int) -> None:
        """Note that a connection has ended."""
        self._kill_at.pop(conn, None)

    def kill_late(self, now: float) -> None:
        """Kill the connections whose time is over."""
        for conn, kill_at in list(self._kill_at.items()):
            if now >= kill_at:
                self._kill_at[conn] = now + AGAIN_S
                self._engine.kill(conn)

    def kill(self) -> None:
        """Kill all of them."""
        for conn in list(self._kill_at):
            self._engine.kill(conn)
