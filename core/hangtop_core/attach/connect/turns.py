"""Limits on simultaneous logins: gates and jump hosts refuse too many at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.attach.connect.launcher import Wave
    from hangtop_core.attach.connect.link import Link
    from hangtop_core.attach.connect.timing import Moment


LOOK_S = 0.05
"""Seconds between two checks of all links that log in; a finished login is reported at once."""


class Turns:
    """Links that log in, and links that wait, by `attach.connect.launcher.Wave`."""

    def __init__(self) -> None:
        self._going: dict[str, dict[str, Link]] = defaultdict(dict)
        self._waiting: dict[str, dict[str, Link]] = defaultdict(dict)
        self._looked: dict[str, float] = {}

    def may_start(self, link: Link, now: Moment) -> bool:
        """Return whether few enough of its wave are logging in; if so, count it from now."""
        wave = link.launcher.wave
        free = self._has_free_slot(wave, now)
        if free:
            self._going[wave.name][link.name] = link
            self._waiting[wave.name].pop(link.name, None)
        else:
            self._waiting[wave.name][link.name] = link
        return free

    def done(self, link: Link) -> None:
        """Note that a link is logging in no more."""
        self._going[link.launcher.wave.name].pop(link.name, None)

    def _has_free_slot(self, wave: Wave, now: Moment) -> bool:
        going = self._going[wave.name]
        if len(going) >= wave.at_once and now.mono - self._looked.get(wave.name, 0.0) >= LOOK_S:
            self._looked[wave.name] = now.mono
            for link in [pending for pending in going.values() if not pending.on_its_way(now)]:
                del going[link.name]
        return len(going) < wave.at_once

    def come(self, now: Moment) -> Iterator[Link]:
        """Start the waiting links that may log in now, and yield them."""
        for waiting in list(self._waiting.values()):
            while waiting:
                link = next(iter(waiting.values()))
                if link.waits and not self._has_free_slot(link.launcher.wave, now):
                    break
                del waiting[link.name]
                if link.waits:
                    link.start_in_turn(now)
                    yield link
