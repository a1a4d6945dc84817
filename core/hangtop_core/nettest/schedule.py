"""The order of connections: every pair once, no node in two at a time."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def rounds(players: list[T]) -> list[list[tuple[T, T]]]:
    """Return a round-robin tournament by the circle method.

    n players have n - 1 rounds (n if n is odd, with one player resting in each) of at most n // 2
    pairs.
    """
    ring: list[T | None] = [*players, *([None] if len(players) % 2 else [])]
    schedule = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        schedule.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return schedule


def orders(players: list[T]) -> dict[T, list[T]]:
    """Return for each player the others in the order of the tournament."""
    order: dict[T, list[T]] = {player: [] for player in players}
    for pairs in rounds(players):
        for first, second in pairs:
            order[first].append(second)
            order[second].append(first)
    return order


def groups(players: list[T], size: int) -> list[list[T]]:
    """Cut players into groups of nearly equal size, ``size`` at most."""
    count = -(-len(players) // size)
    return [players[start::count] for start in range(count)]


def across(left: list[T], right: list[T]) -> list[list[tuple[T, T]]]:
    """Return rounds in which every one of ``left`` meets every one of ``right``."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return [
        [(player, longer[(index + turn) % len(longer)]) for index, player in enumerate(shorter)]
        for turn in range(len(longer))
    ]
