"""Plain data of structs for a file, and their differences from structs written before.

`whole` writes a struct out, without fields that have their default. `difference` returns the
changes from another struct: snapshots share unchanged parts as the same objects, so that it costs
as much as has changed. `Maker` is the inverse. Both depend on the types of fields:

* a struct: an object with the changed fields; the whole struct if there was none
* a tuple of structs: `{"set": {index: difference}}`; `"order"` gives the former index of each item,
  -1 for new ones, which are in `"new"` by their index. Without `order` all places are unchanged.
* a mapping to structs: `{"set": {key: difference}, "new": {key: whole}, "gone": [key]}`
* the text of a log: how many characters of the former text remain
* a flight recorder's trace: its number; `traces` writes the traces
* any other value: unchanged

Items are identified by `_KEYS`.
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
"""Maximum number of items of one tuple or mapping."""
MAX_MADE = 4_000_000
"""Maximum number of places in all tuples of a file together, which limits the work that a few bytes
can cause. A history has a million ranks at most (`History`)."""

_APART = frozenset({Update, Snapshot, Job, Rank, Recorder})
"""Types that may hold a trace, and so cannot be decoded in one step."""
_KEYS: dict[type[Struct], Callable[[Any], object]] = {
    Node: lambda item: item.name,
    Job: lambda item: item.key,
    Rank: lambda item: item.process.identity,
    Process: lambda item: item.identity,
    Output: lambda item: (item.node, item.inode),
    Gpu: lambda item: item.index,
    Nic: lambda item: item.name,
}
"""The identity of an item of a tuple; its place for other types."""


class Damaged(ValueError):
    """The content of a file is inconsistent."""


class Part(NamedTuple):
    """A field of a struct."""

    name: str
    kind: Kind
    item: Any
    """The struct that it is or contains."""
    type: Any
    default: Any
    quick: type | None
    """The type of values that need no further check: for numbers without limits."""


@cache
def parts(kind: type[Struct]) -> tuple[Part, ...]:
    """Return the fields of a struct, except `Snapshot.stacks`: stacks have lines of their own."""
    fields = []
    for field in msgspec.structs.fields(kind):
        if kind is Snapshot and field.name == "stacks":
            continue
        default = field.default
        if default is NODEFAULT and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        form, item = _kind(field.type)
        if kind is Output and field.name == "text":
            form = "text"
        fields.append(Part(field.name, form, item, field.type, default, _QUICK.get(field.type)))
    return tuple(fields)


@cache
def _by_name(kind: type[Struct]) -> dict[str, Part]:
    return {part.name: part for part in parts(kind)}


def _kind(annotation: Any) -> tuple[Kind, Any]:
    """Return the kind of a type, and the struct in it."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inside[0])
    if type(None) in inside:
        return _kind(next(inner for inner in inside if inner is not type(None)))
    if _is_struct(annotation):
        return ("trace", annotation) if annotation is Trace else ("struct", annotation)
    if origin is tuple and len(inside) == 2 and inside[1] is ... and _is_struct(inside[0]):
        return "list", inside[0]
    if origin is collections.abc.Mapping and _is_struct(inside[1]):
        return "map", inside[1]
    return "plain", None


def _is_struct(annotation: Any) -> bool:
    return (
        isinstance(annotation, type)
        and issubclass(annotation, Struct)
        and not annotation.__struct_config__.array_like
    )


class Taker:
    """Convert structs to plain data; ``trace`` writes a trace and returns its number, or None."""

    def __init__(self, trace: Callable[[Trace], int | None]) -> None:
        self._trace = trace

    def whole(self, struct: Struct, leave: frozenset[str] = frozenset()) -> Raw:
        """Return a struct without the fields that have their default, or are in ``leave``."""
        raw: Raw = {}
        for part in parts(type(struct)):
            value = getattr(struct, part.name)
            if value is part.default or part.name in leave or value == part.default:
                continue
            raw[part.name] = self._value(part, value)
        return raw

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
            return [self.whole(item) for item in value]
        return {str(key): self.whole(item) for key, item in value.items()}

    def difference(self, old: Struct, new: Struct) -> Raw:
        """Return the fields in which a struct differs from another of its type."""
        raw: Raw = {}
        for part in parts(type(new)):
            before, now = getattr(old, part.name), getattr(new, part.name)
            if before is now or (part.kind in ("plain", "trace") and before == now):
                continue
            if part.kind == "text":
                raw[part.name] = len(now) if before.startswith(now) else now
                continue
            if part.kind in ("plain", "trace") or before is None or now is None:
                raw[part.name] = self._value(part, now)
                continue
            change = self._inner(part.kind, part.item, before, now)
            if change:
                raw[part.name] = change
        return raw

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
    """Return the parts that are not empty."""
    return {name: part for name, part in parts.items() if part}


def _order(
    key: Callable[[Any], object] | None, before: Sequence[Any], now: Sequence[Any]
) -> list[int] | None:
    """Return the former index of each item, -1 for a new one; None if all are unchanged."""
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
    """Rebuild structs from plain data, which may all be forged."""

    def __init__(self, trace: Callable[[int], Trace | None]) -> None:
        self._trace = trace
        self._made = 0

    def whole(self, kind: type[Struct], raw: Any) -> Any:
        """Return a struct from plain data.

        Raises:
            Damaged: when the data is invalid.
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
        return tuple(self.whole(part.item, item) for item in raw)

    def _plain(self, part: Part, raw: Any) -> Any:
        if part.quick is not None and type(raw) is part.quick:
            return raw  # most differences between snapshots: counters and times
        try:
            return msgspec.convert(raw, part.type, str_keys=True)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Damaged(f"{part.name}: {str(error)[:200]}") from None

    def changed(self, old: Struct, raw: Any) -> Any:
        """Return a struct with the written differences applied.

        Raises:
            Damaged: when they do not fit it.
        """
        if not isinstance(raw, dict):
            raise Damaged("a difference is no object")
        fields = {}
        by_name = _by_name(_type(old))
        for name, change in raw.items():
            part = by_name.get(name)
            if part is None:
                continue
            before = getattr(old, name)
            if part.kind == "text" and isinstance(change, int):
                fields[part.name] = before[: _number(change)]
            elif part.kind in ("plain", "text", "trace") or before is None or change is None:
                fields[part.name] = self._value(part, change)
            elif part.kind == "struct":
                fields[part.name] = self.changed(before, change)
            elif part.kind == "list":
                fields[part.name] = self._list(part.item, before, change)
            else:
                fields[part.name] = self._mapping(part, before, change)
        if None in fields.values():
            self._check_nothing(type(old), fields)
        return msgspec.structs.replace(old, **fields)

    def _check_nothing(self, kind: Any, fields: Raw) -> None:
        for part in parts(kind):
            if part.name in fields and fields[part.name] is None and part.kind != "plain":
                self._plain(part, None)

    def _list(self, item: type[Struct], before: tuple[Any, ...], raw: Any) -> tuple[Any, ...]:
        changed, new = _object(raw, "set"), _object(raw, "new")
        order = raw.get("order")
        if order is None:
            items = list(before)
        else:
            if not isinstance(order, list):
                raise Damaged("an order is no list")
            items = [self._placed(before, place) for place in order]
        self._count(len(items))
        for key, change in changed.items():
            place = _place(key, items)
            items[place] = self.changed(items[place], change)
        for key, change in new.items():
            items[_place(key, items)] = self.whole(item, change)
        if order is not None and any(change is None for change in items):
            raise Damaged("an item is not there")
        return tuple(items)

    def _placed(self, before: tuple[Any, ...], place: Any) -> Any:
        number = -1 if place == -1 else _number(place)
        if number >= len(before):
            raise Damaged("an order names an item that was not there")
        return before[number] if number >= 0 else None

    def _mapping(self, part: Part, before: Mapping[Any, Any], raw: Any) -> Mapping[Any, Any]:
        keys = {str(key): key for key in before}
        items = dict(before)
        gone = raw.get("gone", []) if isinstance(raw, dict) else []
        for key in gone if isinstance(gone, list) else []:
            items.pop(keys.get(key) if isinstance(key, str) else None, None)
        for key, item in _object(raw, "set").items():
            if keys.get(key) not in items:
                raise Damaged(f"{part.name} has no {key[:40]!r}")
            items[keys[key]] = self.changed(items[keys[key]], item)
        items |= self._plain(part, _object(raw, "new"))
        self._count(len(items))
        return items

    def _count(self, count: int) -> None:
        self._made += count
        if count > MAX_ITEMS:
            raise Damaged(f"it has more than {MAX_ITEMS:,} items of one kind, the limit")
        if self._made > MAX_MADE:
            raise Damaged(f"it has more than {MAX_MADE:,} items in all pictures, the limit")


def _type(struct: Any) -> type[Struct]:
    kind: type[Struct] = type(struct)
    return kind


def _object(raw: Any, name: str) -> Raw:
    inner = raw.get(name, {}) if isinstance(raw, dict) else None
    if not isinstance(inner, dict):
        raise Damaged(f"{name} is no object")
    return inner


def _number(raw: Any) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 0 <= raw < 1 << 31:
        raise Damaged("what should be a number is none")
    return raw


def _place(key: str, items: Sequence[Any]) -> int:
    if not (key.isdecimal() and len(key) < 10 and int(key) < len(items)):
        raise Damaged(f"there is no item {key[:20]!r}")
    return int(key)
