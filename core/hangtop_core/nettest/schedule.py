"""Who talks to whom, and when: every pair once, no node with two others at a time."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def rounds(players: list[T]) -> list[list[tuple[T, T]]]:
    """Return a round-robin tournament by the circle method.

    Of n players n - 1 rounds (n where n is odd, with one resting in each) of at most n // 2 pairs.
    """
    ring: list[T | None] = [*players, *([None] if len(players) % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def orders(players: list[T]) -> dict[T, list[T]]:
    """Return for each player the others in the order of the tournament."""
    found: dict[T, list[T]] = {player: [] for player in players}
    for pairs in rounds(players):
        for one, other in pairs:
            found[one].append(other)
            found[other].append(one)
    return found


def groups(players: list[T], size: int) -> list[list[T]]:
    """Cut players into groups of nearly equal size, ``size`` at most."""
    count = -(-len(players) // size)
    return [players[start::count] for start in range(count)]


def across(some: list[T], others: list[T]) -> list[list[tuple[T, T]]]:
    """Return rounds in which every one of ``some`` meets every one of ``others``."""
    longer, shorter = (some, others) if len(some) >= len(others) else (others, some)
    return [
        [(one, longer[(index + turn) % len(longer)]) for index, one in enumerate(shorter)]
        for turn in range(len(longer))
    ]
