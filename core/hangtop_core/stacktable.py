"""All stacks that samples refer to: every stack once, frames shared, with a bound.

Stacks are compared by their Python frames only, so that a native sample of a rank that has not
moved still counts as the same stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.model import Frame

MAX_STACKS = 20_000
"""Stacks kept before those that no sample uses are dropped."""


class StackTable:
    """Stacks by key, with numbers that are equal where stacks are."""

    def __init__(self, max_stacks: int = MAX_STACKS) -> None:
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._max = max_stacks
        self._frames: dict[Frame, Frame] = {}
        self._shapes: dict[str, tuple[int, int]] = {}
        self._published: Mapping[str, tuple[Frame, ...]] = {}
        self._changed = False

    def __contains__(self, key: str) -> bool:
        return key in self._stacks

    def __len__(self) -> int:
        return len(self._stacks)

    def add(self, key: str, frames: tuple[Frame, ...]) -> None:
        """Add a stack, innermost frame first; a key always means the same stack."""
        if key in self._stacks:
            return
        shared = tuple(self._frames.setdefault(frame, frame) for frame in frames)
        self._stacks[key] = shared
        self._changed = True

    def shape(self, key: str) -> tuple[int, int]:
        """Return two numbers: equal for equal functions and lines, and for equal functions."""
        known = self._shapes.get(key)
        if known is None:
            python = [f for f in self._stacks.get(key, ()) if not f.native]
            known = self._shapes[key] = (
                hash(tuple((f.file, f.name, f.line) for f in python)),
                hash(tuple((f.file, f.name) for f in python)),
            )
        return known

    @property
    def full(self) -> bool:
        """Whether there are more stacks than should be kept."""
        return len(self._stacks) > self._max

    def keep_only(self, used: Iterable[str]) -> None:
        """Drop every stack that is not in ``used``."""
        kept = {key: self._stacks[key] for key in set(used) if key in self._stacks}
        self._stacks = kept
        self._shapes = {key: shape for key, shape in self._shapes.items() if key in kept}
        self._frames = {frame: frame for frames in kept.values() for frame in frames}
        self._changed = True

    def publish(self) -> Mapping[str, tuple[Frame, ...]]:
        """Return an immutable view; the same object as long as nothing changed."""
        if self._changed:
            self._published = dict(self._stacks)
            self._changed = False
        return self._published
