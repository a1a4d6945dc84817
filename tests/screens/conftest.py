"""What screen tests share: a fixed time zone, and the option that stores new pictures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import textual.app
import textual.pilot

from hangtop.screens import turns
from support.player import idle

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-screens", action="store_true", help="store the pictures of screens as they are"
    )


@pytest.fixture
def update_screens(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-screens", default=False))


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "TMUX", "PAGER", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(textual.app, "wait_for_idle", idle)
    monkeypatch.setattr(textual.pilot, "wait_for_idle", idle)
    # A picture is shown as a whole before a test looks, however slow the machine is.
    monkeypatch.setattr(turns, "TURN_S", 3600.0)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
