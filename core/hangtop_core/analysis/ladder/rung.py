"""The nouns of a ladder: its rungs, their states, and what failing one of them means."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "missing", "not-applicable", "not-reached"]

MATTERS = frozenset(
    {"resolve", "reach", "login", "python", "probe", "processes", "ptrace", "py-spy"}
)
"""Without one of these hangtop cannot see the ranks of a node. The others it can do without."""


class Rung(Struct, frozen=True):
    """One thing that was tried on a node, or on the way there."""

    name: str
    state: State
    text: str = ""
    """What holds, or what is wrong: the same words on every node where it is the same."""
    fix: str | None = None
    """What to do about it, a command where there is one."""
    detail: str | None = None
    """What is particular to the node: addresses, sizes, times."""

    @property
    def matters(self) -> bool:
        """Whether ranks cannot be seen without it."""
        return self.name in MATTERS

    @property
    def fails(self) -> bool:
        """Whether hangtop cannot see ranks on this node because of it."""
        return self.state == "missing" and self.matters


class Ladder(Struct, frozen=True):
    """All rungs of one node."""

    node: str
    rungs: tuple[Rung, ...]

    @property
    def failing(self) -> tuple[Rung, ...]:
        """The rungs that keep hangtop from seeing the ranks there."""
        return tuple(rung for rung in self.rungs if rung.fails)

    @property
    def answered(self) -> bool:
        """Whether a probe answered from there."""
        return any(rung.name == "probe" and rung.state in ("ok", "warning") for rung in self.rungs)

    def rung(self, name: str) -> Rung:
        """Return the rung of that name.

        Raises:
            KeyError: when there is none.
        """
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise KeyError(name)


def ok(name: str, text: str, detail: str | None = None) -> Rung:
    """It works."""
    return Rung(name, "ok", text, None, detail)


def warning(name: str, text: str, fix: str | None = None, detail: str | None = None) -> Rung:
    """It works, but not as it should."""
    return Rung(name, "warning", text, fix, detail)


def missing(name: str, text: str, fix: str | None = None, detail: str | None = None) -> Rung:
    """It does not work."""
    return Rung(name, "missing", text, fix, detail)


def skipped(name: str, text: str) -> Rung:
    """There is nothing of the kind on this node, and nothing is wrong with that."""
    return Rung(name, "not-applicable", text)


def unreached(name: str, text: str = "") -> Rung:
    """It could not be tried, because something before it failed."""
    return Rung(name, "not-reached", text)
