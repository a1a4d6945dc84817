"""Structs as plain data for a file, and as what differs from one that was written before.

`whole` writes a struct out, without fields that have their default. `difference` says how a struct
differs from another: pictures share what did not change between them, as the same objects, so that
finding it costs what has changed. `Maker` is the way back. Both go by the types of fields:

* a struct: an object with the fields that differ; the whole one where there was none
* a tuple of structs: `{"set": {index: difference}}`; `"order"` says where items were before, -1 for
  new ones, which are in `"new"` by their index. Without `order` all are where they were.
* a mapping to structs: `{"set": {key: difference}, "new": {key: whole}, "gone": [key]}`
* the text of a log: how many characters of what it was are left
* a flight recorder's trace: its number; `traces` writes those
* anything else: as it is

An item is found again by what identifies it, see `_KEYS`.
"""

from __future__ import annotations

import collections.abc
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct

from hangtop_core.model.node.hardware import Gpu, Nic
from hangtop_core.model.output import Output
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.model.snapshot import Job, Node, Process, Rank, Recorder, Snapshot
from hangtop_core.model.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Raw = dict[str, Any]
Kind = Literal["plain", "text", "struct", "list", "map", "trace"]

_SCALARS = frozenset({str, int, float, bool})
_QUICK: dict[Any, type] = {int: int, float: float, int | None: int, float | None: float}
MAX_ITEMS = 1 << 18
"""Items of one tuple or mapping."""
MAX_MADE = 4_000_000
"""Places in all tuples of a file together: what a few bytes there can grow to has a bound, as each
is looked at. A history has a million ranks at most (`History`)."""

_APART = frozenset({Update, Snapshot, Job, Rank, Recorder})
"""What may hold a trace, and so cannot be decoded in one go."""
_KEYS: dict[type[Struct], Callable[[Any], object]] = {
    Node: lambda one: one.name,
    Job: lambda one: one.key,
    Rank: lambda one: one.process.identity,
    Process: lambda one: one.identity,
    Output: lambda one: (one.node, one.inode),
    Gpu: lambda one: one.index,
    Nic: lambda one: one.name,
}
"""What identifies an item of a tuple; where nothing does, its place."""


class Damaged(ValueError):
    """What a file says does not fit together."""


class Part(NamedTuple):
    """One field of a struct."""

    name: str
    kind: Kind
    item: Any
    """The struct it is or holds."""
    type: Any
    default: Any
    quick: type | None
    """What a value may be without another look: for numbers without limits."""


@cache
def parts(kind: type[Struct]) -> tuple[Part, ...]:
    """The fields of a struct, but `Snapshot.stacks`: stacks are in lines of their own."""
    found = []
    for one in msgspec.structs.fields(kind):
        if kind is Snapshot and one.name == "stacks":
            continue
        default = one.default
        if default is NODEFAULT and one.default_factory is not NODEFAULT:
            default = one.default_factory()
        told, item = _kind(one.type)
        if kind is Output and one.name == "text":
            told = "text"
        found.append(Part(one.name, told, item, one.type, default, _QUICK.get(one.type)))
    return tuple(found)


@cache
def _by_name(kind: type[Struct]) -> dict[str, Part]:
    return {part.name: part for part in parts(kind)}


def _kind(told: Any) -> tuple[Kind, Any]:
    """What a type is, and the struct in it."""
    origin, inside = typing.get_origin(told), typing.get_args(told)
    if origin is typing.Annotated:
        return _kind(inside[0])
    if type(None) in inside:
        return _kind(next(one for one in inside if one is not type(None)))
    if _is_struct(told):
        return ("trace", told) if told is Trace else ("struct", told)
    if origin is tuple and len(inside) == 2 and inside[1] is ... and _is_struct(inside[0]):
        return "list", inside[0]
    if origin is collections.abc.Mapping and _is_struct(inside[1]):
        return "map", inside[1]
    return "plain", None


def _is_struct(told: Any) -> bool:
    return (
        isinstance(told, type)
        and issubclass(told, Struct)
        and not told.__struct_config__.array_like
    )


class Taker:
    """Takes structs apart; ``trace`` writes a trace and gives its number, or None."""

    def __init__(self, trace: Callable[[Trace], int | None]) -> None:
        self._trace = trace

    def whole(self, one: Struct, leave: frozenset[str] = frozenset()) -> Raw:
        """A struct without the fields that have their default, or are to be left out."""
        found: Raw = {}
        for part in parts(type(one)):
            value = getattr(one, part.name)
            if value is part.default or part.name in leave or value == part.default:
                continue
            found[part.name] = self._value(part, value)
        return found

    def _value(self, part: Part, value: Any) -> Any:
        if value is None or type(value) in _SCALARS:
            return value
        if part.kind == "plain":
            return msgspec.to_builtins(value, str_keys=True)
        if part.kind == "trace":
            return self._trace(value)
        if part.kind == "struct":
            return self.whole(value)
        if part.kind == "list":
            return [self.whole(one) for one in value]
        return {str(key): self.whole(one) for key, one in value.items()}

    def difference(self, old: Struct, new: Struct) -> Raw:
        """The fields in which a struct differs from another of its type."""
        found: Raw = {}
        for part in parts(type(new)):
            before, now = getattr(old, part.name), getattr(new, part.name)
            if before is now or (part.kind in ("plain", "trace") and before == now):
                continue
            if part.kind == "text":
                found[part.name] = len(now) if before.startswith(now) else now
                continue
            if part.kind in ("plain", "trace") or before is None or now is None:
                found[part.name] = self._value(part, now)
                continue
            told = self._inner(part.kind, part.item, before, now)
            if told:
                found[part.name] = told
        return found

    def _inner(self, kind: Kind, item: type[Struct], before: Any, now: Any) -> Raw:
        if kind == "struct":
            return self.difference(before, now)
        if kind == "map":
            return self._mapping(before, now)
        return self._list(item, before, now)

    def _list(self, item: type[Struct], before: Sequence[Any], now: Sequence[Any]) -> Raw:
        order = _order(_KEYS.get(item), before, now)
        changed: Raw = {}
        new: Raw = {}
        for place, value in enumerate(now):
            was = place if order is None else order[place]
            if was < 0:
                new[str(place)] = self.whole(value)
            elif before[was] is not value and (change := self.difference(before[was], value)):
                changed[str(place)] = change
        changes = _filled(set=changed, new=new)
        return changes if order is None else {"order": order, **changes}

    def _mapping(self, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> Raw:
        changed: Raw = {}
        new: Raw = {}
        for key, value in now.items():
            if key not in before:
                new[str(key)] = self.whole(value)
            elif before[key] is not value and (change := self.difference(before[key], value)):
                changed[str(key)] = change
        gone = [str(key) for key in before if key not in now]
        return _filled(set=changed, new=new, gone=gone)


def _filled(**parts: Raw | list[str]) -> Raw:
    """Return what is not empty."""
    return {name: part for name, part in parts.items() if part}


def _order(
    key: Callable[[Any], object] | None, before: Sequence[Any], now: Sequence[Any]
) -> list[int] | None:
    """Return where each item was before, -1 for a new one; None where all are where they were."""
    if key is None:
        if len(before) == len(now):
            return None
        return [place if place < len(before) else -1 for place in range(len(now))]
    if _same_places(key, before, now):
        return None
    places = {key(value): place for place, value in enumerate(before)}
    return [places.get(key(value), -1) for value in now]


def _same_places(key: Callable[[Any], object], before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(
        a is b or key(a) == key(b) for a, b in zip(before, now, strict=True)
    )


class Maker:
    """Puts structs together again. Everything it is given may be made up by a stranger."""

    def __init__(self, trace: Callable[[int], Trace | None]) -> None:
        self._trace = trace
        self._made = 0

    def whole(self, kind: type[Struct], raw: Any) -> Any:
        """A struct from plain data.

        Raises:
            Damaged: when that is none.
        """
        if not isinstance(raw, dict):
            raise Damaged(f"{kind.__name__} is no object")
        try:
            if kind not in _APART:
                return msgspec.convert(raw, kind, str_keys=True)
            fields = {
                part.name: self._value(part, raw[part.name])
                for part in parts(kind)
                if part.name in raw
            }
            return kind(**fields)
        except (msgspec.MsgspecError, TypeError, RecursionError) as error:
            raise Damaged(f"{kind.__name__}: {str(error)[:200]}") from None

    def _value(self, part: Part, raw: Any) -> Any:
        if part.kind == "trace":
            return None if raw is None else self._trace(_number(raw))
        if raw is None or part.item not in _APART:
            return self._plain(part, raw)
        if part.kind == "struct":
            return self.whole(part.item, raw)
        if part.kind == "map" or not isinstance(raw, list):
            raise Damaged(f"{part.name} is no list")
        self._count(len(raw))
        return tuple(self.whole(part.item, one) for one in raw)

    def _plain(self, part: Part, raw: Any) -> Any:
        if part.quick is not None and type(raw) is part.quick:
            return raw  # most of what differs between pictures: counters and times
        try:
            return msgspec.convert(raw, part.type, str_keys=True)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Damaged(f"{part.name}: {str(error)[:200]}") from None

    def changed(self, old: Struct, raw: Any) -> Any:
        """A struct with the differences that were written.

        Raises:
            Damaged: when those do not fit to it.
        """
        if not isinstance(raw, dict):
            raise Damaged("a difference is no object")
        fields = {}
        known = _by_name(_type(old))
        for name, told in raw.items():
            part = known.get(name)
            if part is None:
                continue
            before = getattr(old, name)
            if part.kind == "text" and isinstance(told, int):
                fields[part.name] = before[: _number(told)]
            elif part.kind in ("plain", "text", "trace") or before is None or told is None:
                fields[part.name] = self._value(part, told)
            elif part.kind == "struct":
                fields[part.name] = self.changed(before, told)
            elif part.kind == "list":
                fields[part.name] = self._list(part.item, before, told)
            else:
                fields[part.name] = self._mapping(part, before, told)
        if None in fields.values():
            self._check_nothing(type(old), fields)
        return msgspec.structs.replace(old, **fields)

    def _check_nothing(self, kind: Any, fields: Raw) -> None:
        for part in parts(kind):
            if part.name in fields and fields[part.name] is None and part.kind != "plain":
                self._plain(part, None)

    def _list(self, item: type[Struct], before: tuple[Any, ...], raw: Any) -> tuple[Any, ...]:
        told, new = _object(raw, "set"), _object(raw, "new")
        order = raw.get("order")
        if order is None:
            found = list(before)
        else:
            if not isinstance(order, list):
                raise Damaged("an order is no list")
            found = [self._placed(before, place) for place in order]
        self._count(len(found))
        for key, one in told.items():
            place = _place(key, found)
            found[place] = self.changed(found[place], one)
        for key, one in new.items():
            found[_place(key, found)] = self.whole(item, one)
        if order is not None and any(one is None for one in found):
            raise Damaged("an item is not there")
        return tuple(found)

    def _placed(self, before: tuple[Any, ...], place: Any) -> Any:
        number = -1 if place == -1 else _number(place)
        if number >= len(before):
            raise Damaged("an order names an item that was not there")
        return before[number] if number >= 0 else None

    def _mapping(self, part: Part, before: Mapping[Any, Any], raw: Any) -> Mapping[Any, Any]:
        keys = {str(key): key for key in before}
        found = dict(before)
        gone = raw.get("gone", []) if isinstance(raw, dict) else []
        for key in gone if isinstance(gone, list) else []:
            found.pop(keys.get(key) if isinstance(key, str) else None, None)
        for key, one in _object(raw, "set").items():
            if keys.get(key) not in found:
                raise Damaged(f"{part.name} has no {key[:40]!r}")
            found[keys[key]] = self.changed(found[keys[key]], one)
        found |= self._plain(part, _object(raw, "new"))
        self._count(len(found))
        return found

    def _count(self, count: int) -> None:
        self._made += count
        if count > MAX_ITEMS:
            raise Damaged(f"it has more than {MAX_ITEMS:,} items of one kind, the limit")
        if self._made > MAX_MADE:
            raise Damaged(f"it has more than {MAX_MADE:,} items in all pictures, the limit")


def _type(one: Any) -> type[Struct]:
    found: type[Struct] = type(one)
    return found


def _object(raw: Any, name: str) -> Raw:
    found = raw.get(name, {}) if isinstance(raw, dict) else None
    if not isinstance(found, dict):
        raise Damaged(f"{name} is no object")
    return found


def _number(raw: Any) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 0 <= raw < 1 << 31:
        raise Damaged("what should be a number is none")
    return raw


def _place(key: str, found: Sequence[Any]) -> int:
    if not (key.isdecimal() and len(key) < 10 and int(key) < len(found)):
        raise Damaged(f"there is no item {key[:20]!r}")
    return int(key)
