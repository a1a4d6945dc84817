"""Which words in plain data are hangtop's own: keys, and states and kinds that are one of a few.

A node may be called as one of them, and must not take its place.
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
"""Keys of the lines of a capture, and of what differs in them, that are of no struct."""


@lru_cache(maxsize=4096)
def is_key(key: str) -> bool:
    """Whether a key says what its value is, or its place, and is no name of somebody's."""
    known = key.isdecimal() or key in _LINE_KEYS
    return known or any(key in kind.__struct_encode_fields__ for kind in _structs(Struct))


def is_word(key: Any, value: str) -> bool:
    """Whether a value is one of the few that a field of this name may have."""
    return isinstance(key, str) and value in _words(key)


@lru_cache(maxsize=4096)
def _words(key: str) -> frozenset[str]:
    found: set[str] = set()
    for kind in _structs(Struct):
        if key in kind.__struct_encode_fields__:
            try:
                fields = msgspec.structs.fields(kind)
            except NameError:  # its types are known to a type checker only: nothing is read into it
                continue
            for one in fields:
                if one.encode_name == key:
                    found.update(_literals(one.type))
    return frozenset(found)


def _literals(told: Any) -> Iterator[str]:
    """The words in a type such as `Literal["ready", "lost"] | None`."""
    for one in typing.get_args(told):
        if typing.get_origin(told) is not typing.Literal:
            yield from _literals(one)
        elif isinstance(one, str):
            yield one


def _structs(kind: type[Struct]) -> Iterator[type[Struct]]:
    for one in kind.__subclasses__():
        yield one
        yield from _structs(one)
