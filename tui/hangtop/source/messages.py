"""Messages between the bridge, the app and its screens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence


class Updated(Message, bubble=False):
    """A newer update can be taken from the bridge; at most one such message is pending.

    Only the newest update matters: a slow screen skips updates and never lags behind.
    """


class Answered(Message, bubble=False):
    """A request has ended."""

    def __init__(
        self, kind: str, label: str, result: Any, error: BaseException | None, about: str = ""
    ) -> None:
        super().__init__()
        self.about = about
        """Key of the rank it was about."""
        self.kind = kind
        self.label = label
        """What was asked for, for people."""
        self.result = result
        self.error = error


class TraceLines(Message, bubble=False):
    """Lines of the running trace."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = tuple(lines)


class Calculated(Message, bubble=False):
    """A calculation on a thread has finished."""
