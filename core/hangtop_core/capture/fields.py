"""Hangtop's own words in plain data: keys, and states and kinds from a fixed set.

A node may have one of these as its name, and must not replace it.
"""

from __future__ import annotations

import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hangtop_probe.proc.procfs import words

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_KEYS = frozenset(
    words("""
    at base calls columns command diagnosis earlier end frames gone groups lines new newest_ns node
    of order output parts rank recorder row set sites source stack text trace verdict
    """)
)
"""Keys of the lines of a capture, and of differences, that belong to no struct."""


@lru_cache(maxsize=4096)
def is_key(key: str) -> bool:
    """Whether a key names a field or a place, and not something of the user's."""
    is_listed = key.isdecimal() or key in _LINE_KEYS
    return is_listed or any(key in kind.__struct_encode_fields__ for kind in _structs(Struct))


def is_word(key: Any, value: str) -> bool:
    """Whether a value is one of the fixed set of a field of this name."""
    return isinstance(key, str) and value in _words(key)


@lru_cache(maxsize=4096)
def _words(key: str) -> frozenset[str]:
    literals: set[str] = set()
    for kind in _structs(Struct):
        if key in kind.__struct_encode_fields__:
            try:
                fields = msgspec.structs.fields(kind)
            except NameError:  # types for a type checker only: nothing is decoded into it
                continue
            for field in fields:
                if field.encode_name == key:
                    literals.update(_literals(field.type))
    return frozenset(literals)


def _literals(annotation: Any) -> Iterator[str]:
    """Yield the words in a type such as `Literal["ready", "lost"] | None`."""
    for argument in typing.get_args(annotation):
        if typing.get_origin(annotation) is not typing.Literal:
            yield from _literals(argument)
        elif isinstance(argument, str):
            yield argument


def _structs(kind: type[Struct]) -> Iterator[type[Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _structs(subclass)
