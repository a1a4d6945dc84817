"""The Python program that the user opens from the list: the app is restarted on it."""

from __future__ import annotations


class Programs:
    """The chosen program."""

    def __init__(self) -> None:
        self.chosen: int | None = None
        """Its pid."""
