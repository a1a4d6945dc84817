"""How much an object holds: what has to stay the same however long something runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any


def weight(*roots: object) -> int:
    """Count everything that is held, each object once: entries, elements, attributes, characters.

    Characters in hundreds, so that a number with one digit more is no growth. What is in slots of
    ordinary classes is not seen.
    """
    seen: set[int] = set()
    todo: list[object] = list(roots)
    total = 0
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, int, float)) or one is None:
            continue
        seen.add(id(one))
        total += 1
        if isinstance(one, (str, bytes)):
            total += len(one) // 100
        else:
            parts = _parts(one)
            total += len(parts)
            todo += parts
    return total


def _parts(one: object) -> list[Any]:
    if isinstance(one, Mapping):
        return [*one.keys(), *one.values()]
    if isinstance(one, (list, tuple, set, frozenset, deque)):
        return list(one)
    names = getattr(type(one), "__struct_fields__", None) or getattr(one, "__dict__", ())
    return [getattr(one, name) for name in names]
