"""Whose turn it is to connect: gates and jump hosts refuse a crowd that logs in at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.attach.link import Link
    from hangtop_core.attach.local import Wave
    from hangtop_core.attach.timing import Moment


class Turns:
    """Those that log in, and those that wait, wave by wave; see `attach.local.Wave`."""

    def __init__(self) -> None:
        self._going: dict[str, list[Link]] = defaultdict(list)
        self._waiting: dict[str, dict[str, Link]] = defaultdict(dict)

    def may_start(self, link: Link, now: Moment) -> bool:
        """Whether few enough of its wave are logging in; one that may counts as one from now."""
        wave = link.launcher.wave
        free = self._has_room(wave, now)
        if free:
            self._going[wave.name].append(link)
            self._waiting[wave.name].pop(link.name, None)
        else:
            self._waiting[wave.name][link.name] = link
        return free

    def _has_room(self, wave: Wave, now: Moment) -> bool:
        going = self._going[wave.name]
        if len(going) >= wave.at_once:
            going[:] = [link for link in going if link.on_its_way(now)]
        return len(going) < wave.at_once

    def come(self, now: Moment) -> Iterator[Link]:
        """Let those start for which there is room now, and yield them."""
        for waiting in list(self._waiting.values()):
            while waiting:
                link = next(iter(waiting.values()))
                if link.waits and not self._has_room(link.launcher.wave, now):
                    break
                del waiting[link.name]
                if link.waits:
                    link.start_in_turn(now)
                    yield link
