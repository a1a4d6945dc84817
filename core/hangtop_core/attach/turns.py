"""Whose turn it is to connect: gates and jump hosts refuse a crowd that logs in at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangtop_core.attach.link import Link
    from hangtop_core.attach.timing import Moment


class Turns:
    """Those that may log in, and those that wait, wave by wave; see `attach.local.Wave`."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        """``links`` are all there are, by name; others may be added."""
        self._links = links
        self._logging_in: Counter[str] = Counter()
        self._at: Moment | None = None
        self._waiting: dict[str, Link] = {}

    def may_start(self, link: Link, now: Moment) -> bool:
        """Whether few enough of its wave are logging in; one that may counts as one from now."""
        if self._at != now:
            self._at = now
            some = (one.launcher.wave.name for one in self._links.values() if one.on_its_way(now))
            self._logging_in = Counter(some)
        wave = link.launcher.wave
        free = self._logging_in[wave.name] < wave.at_once
        if free:
            self._logging_in[wave.name] += 1
            self._waiting.pop(link.name, None)
        else:
            self._waiting[link.name] = link
        return free

    def come(self, now: Moment) -> Iterator[Link]:
        """Let those start for which there is room now, and yield them."""
        full: set[str] = set()
        for name, link in list(self._waiting.items()):
            if link.launcher.wave.name in full:
                continue
            if link.waits:
                link.start_in_turn(now)
            if link.waits:
                full.add(link.launcher.wave.name)
            else:
                self._waiting.pop(name, None)
                yield link
