"""The Python program that a person opens from the list: the app is opened on it anew."""

from __future__ import annotations


class Programs:
    """Which program was chosen."""

    def __init__(self) -> None:
        self.chosen: int | None = None
        """Its pid."""
