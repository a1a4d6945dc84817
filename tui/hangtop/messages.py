"""Messages between the bridge, the app and its screens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.updates import Update


class Updated(Message, bubble=False):
    """A newer picture arrived. A still newer one may take its place in the queue."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update

    def can_replace(self, message: Message) -> bool:
        """Only the newest matters: a slow screen skips, it never lags behind."""
        return isinstance(message, Updated)


class Answered(Message, bubble=False):
    """A request came to its end."""

    def __init__(
        self, kind: str, told: str, result: Any, error: BaseException | None, about: str = ""
    ) -> None:
        super().__init__()
        self.about = about
        """Key of the rank it was about."""
        self.kind = kind
        self.told = told
        """What was asked for, for people."""
        self.result = result
        self.error = error


class TraceLines(Message, bubble=False):
    """Lines of the running trace."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = tuple(lines)
