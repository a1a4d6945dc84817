"""What is taken first of what waits for the session's thread, and what keeps its order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hangtop_core.attach.connect.engine import Lines
from hangtop_core.session.inbox import Inbox
from support.processes import PATIENCE

if TYPE_CHECKING:
    from hangtop_core.session.inbox import Item

NEW = {1, 2}


def lines(conn: int, number: int) -> Lines:
    return Lines(conn, [b"%d" % number], 1)


def goes_first(item: Item) -> bool:
    return isinstance(item, Lines) and item.conn in NEW


def taken(inbox: Inbox, *, first_only: bool = False) -> list[Item]:
    found = []
    while (item := inbox.take(first_only=first_only)) is not None:
        found.append(item)
    return found


def test_who_is_new_is_heard_first_and_each_in_order() -> None:
    inbox = Inbox(goes_first)
    said = [lines(conn, number) for number in range(3) for conn in (5, 1, 6, 2)]
    for item in said:
        inbox.put(item)
    new = [one for one in said if one.conn in NEW]
    assert taken(inbox, first_only=True) == new
    assert not inbox.empty, "the others go on waiting"
    inbox.put(lines(1, 3))
    assert taken(inbox) == [lines(1, 3), *(one for one in said if one.conn not in NEW)]
    assert inbox.empty
    assert inbox.take(0.001) is None


def test_who_waits_is_woken() -> None:
    inbox = Inbox(goes_first)
    inbox.put(lines(5, 0))
    timer = threading.Timer(0.01, inbox.put, [lines(1, 0)])
    timer.start()
    try:
        assert inbox.take(PATIENCE, first_only=True) == lines(1, 0)
    finally:
        timer.join()
