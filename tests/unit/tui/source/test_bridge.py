"""Updates on their way from the session to the app."""

from __future__ import annotations

from typing import Any

from hangtop.source.bridge import Bridge
from hangtop_core.scheduling.ui_priority import SCREENS
from support.player import Player, later
from support.record import load


def test_pictures_that_nobody_takes_do_not_pile_up() -> None:
    update = load("skip")
    posted: list[Any] = []
    player = Player(update)
    bridge = Bridge(player, posted.append)
    bridge.start()
    for second in range(5):
        player.play(newest := later(update, second))
    assert len(posted) == 1
    assert bridge.taken() is newest
    assert bridge.taken() is None
    player.play(update)
    assert len(posted) == 2


def test_who_waits_for_the_screens_waits_for_a_picture_that_is_on_its_way() -> None:
    bridge = Bridge(player := Player(None), lambda _: None)
    bridge.start()
    SCREENS.begin()
    SCREENS.end()
    try:
        player.play(load("skip"))
        assert not SCREENS._rests.is_set()
    finally:
        SCREENS.end()
