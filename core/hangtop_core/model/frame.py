"""A stack frame, shared by recorders and stacks."""

from __future__ import annotations

from msgspec import Struct

from hangtop_core.text.clean import Code, Text


class Frame(Struct, frozen=True, gc=False):
    """One Python or native frame, as py-spy names it."""

    name: Text
    file: Text
    """Full path, or the shared object of a native frame."""
    short: Text
    """Path as py-spy shortens it, relative to its package."""
    line: int
    native: bool = False
    source: Code | None = None
    """The line of code, when the node could read it safely."""
    within: tuple[tuple[int, Code], ...] | None = None
    """Line and text of the loops and conditions around it in its function, outermost first.

    `for x in y:`, `if x:`, or `else: if x:` in the `else` of that. Known for the user's own frames
    where the node could read their file safely; else None. A line with `x.wait()` also gets the
    statement that started x: `made: x = isend(y)`.
    """
    beside: tuple[tuple[int, Code], ...] | None = None
    """Likewise `with x:`, `except x:`, `finally:`, and the first statement of each `try` before
    it."""
