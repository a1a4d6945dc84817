"""Captures of real jobs, which the screens are tested with; `make captures` records them anew.

They are opened by what `hangtop open` opens them with, and so are judged by today's rules.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.commands.opening import opened
from hangtop_core.capture.form import SUFFIX

if TYPE_CHECKING:
    from hangtop_core.capture import Capture
    from hangtop_core.model.updates import Update

FOLDER = Path(__file__).parents[1] / "recordings"


def path_of(name: str) -> Path:
    """Where a capture is."""
    return FOLDER / f"{name}{SUFFIX}"


@cache
def capture(name: str) -> Capture:
    """A capture, opened."""
    found, notices = opened(str(path_of(name)))
    assert found.cut is None, notices
    return found


def load(name: str) -> Update:
    """The newest picture of a capture."""
    return capture(name).newest
