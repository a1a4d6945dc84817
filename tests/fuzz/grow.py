"""Good input that grows at one place of it: what any decoder, and what follows it, is measured with.

A place is a list or a mapping within JSON or a pickle, a line of text, or the whole. What stands there is
repeated, with all its numbers moved on each time, so that there is much that differs.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fuzz.target import Target

NUMBERS = re.compile(r"\d{1,15}")
DEPTH = 9
"""Levels of a document within which there are places."""
WORDS = re.compile(rb"[A-Za-z0-9_./:-]{2,40}")
WORDS_OF_SEED = 12
ALIKE = 3
"""Elements of a list that are places of their own: the others have the same form."""

Path = tuple[Any, ...]


class Place(NamedTuple):
    """Where an input grows."""

    name: str
    grown: Callable[[int], bytes]
    """The input with so many more elements there."""


def places(target: Target) -> Iterator[Place]:
    """Yield all places of a target's good input, each of one form once."""
    for number, seed in enumerate(target.seeds()):
        for place in _places(seed):
            yield place._replace(name=f"{number}{place.name}")


def _places(seed: bytes) -> Iterator[Place]:
    if (document := _pickled(seed)) is not None:
        yield from _within(document, pickle.dumps)
        return
    yield Place(":whole", partial(_repeated, seed))
    lines = seed.split(b"\n")
    for number, line in enumerate(lines):
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        if isinstance(document, dict | list):
            for place in _within(document, _as_json):
                yield Place(
                    f":{number}{place.name}",
                    partial(_with_line, lines, number, place.grown),
                )
        elif 1 < len(lines) < 40:
            yield Place(
                f":{number}", partial(_with_line, lines, number, partial(_repeated, line + b"\n"))
            )


def words(target: Target) -> Iterator[Place]:
    """Yield words of a target's good input that can be made longer: the first of each kind."""
    for number, seed in enumerate(target.seeds()):
        kinds = {_kind(found[0]): found for found in reversed(list(WORDS.finditer(seed)))}
        for kind, found in list(kinds.items())[-WORDS_OF_SEED:]:
            name = f"{number}~{kind.decode('latin-1')[:20]}"
            yield Place(name, partial(_longer, seed, *found.span()))


def _kind(word: bytes) -> bytes:
    return re.sub(rb"[A-Za-z]+", b"a", re.sub(rb"\d+", b"0", word))


def _longer(seed: bytes, begin: int, end: int, times: int) -> bytes:
    return seed[:end] + seed[begin:end] * times + seed[end:]


def _pickled(seed: bytes) -> Any:
    return pickle.loads(seed) if seed[:1] == b"\x80" else None  # our own


def _as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _with_line(lines: list[bytes], number: int, grown: Callable[[int], bytes], times: int) -> bytes:
    return b"\n".join([*lines[:number], grown(times), *lines[number + 1 :]])


def _repeated(text: bytes, times: int) -> bytes:
    shown = text.decode("latin-1")
    return "".join(moved(shown, number) for number in range(times + 1)).encode("latin-1")


def _within(document: Any, encode: Callable[[Any], bytes]) -> Iterator[Place]:
    for path in _paths(document, ()):
        name = "".join(f".{step}" for step in path)
        yield Place(name, lambda times, path=path: encode(_grown(document, path, times)))


def _paths(value: Any, path: Path) -> Iterator[Path]:
    """Yield where there are lists and mappings with anything in them."""
    if not isinstance(value, dict | list) or not value or len(path) > DEPTH:
        return
    yield path
    keys = list(value)[:40] if isinstance(value, dict) else range(min(len(value), ALIKE))
    for key in keys:
        yield from _paths(value[key], (*path, key))


def _grown(document: Any, path: Path, times: int) -> Any:
    whole = copy.deepcopy(document)
    holder = whole
    for key in path:
        holder = holder[key]
    if isinstance(holder, list):
        models = list(holder)
        holder.extend(moved(models[at % len(models)], at + 1) for at in range(times))
        return whole
    models = list(holder.items())
    more = (
        (moved_key(key, turn), moved(value, turn)) for turn in count(1) for key, value in models
    )
    for key, value in islice(more, times):
        holder.setdefault(key, value)
    return whole


def moved_key(key: Any, by: int) -> Any:
    """Return another key of the same form."""
    return f"{key}{by}" if isinstance(key, str) and not NUMBERS.search(key) else moved(key, by)


def moved(value: Any, by: int) -> Any:
    """Return a value with all numbers in it moved on."""
    match value:
        case bool() | None:
            return value
        case int() | float():
            return value + by
        case str():
            return NUMBERS.sub(lambda found: str(int(found[0]) + by), value)
        case dict():
            return {key: moved(item, by) for key, item in value.items()}
        case tuple() | list():
            return type(value)(moved(item, by) for item in value)
    return value
