"""Decoding of changed fields of processes and nodes, from a `messages.WatchPiece`.

A value that does not fit is dropped and reported; other fields of its process or node are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from hangtop_core.attach.wire.messages import MISFITS
from hangtop_core.attach.wire.strings import ThreadRow, threads
from hangtop_core.model.meters import MetersPart, sent_values
from hangtop_core.model.snapshot import Node, Process
from hangtop_core.text import fixes
from hangtop_core.text.clean import Text, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


FEW = 8
"""Maximum number of fields that are read singly: for more, reading the whole struct is cheaper."""


class Fields:
    """Decoder of structs that are sent in part, each field with its type."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        """``types`` maps names of fields to types."""
        self.types = types
        self._partial: Any = msgspec.defstruct(
            "Some", [(name, kind | UnsetType, UNSET) for name, kind in types.items()], gc=False
        )

    def read(self, raw: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
        """Decode the fields of ``raw``: all at once if all are valid, else one by one."""
        if not raw:
            return {}
        try:
            decoded = msgspec.convert(raw, self._partial)
        except MISFITS:
            return self._each(raw, wrong)
        if len(raw) > FEW:
            values = msgspec.structs.asdict(decoded)
            return {name: value for name, value in values.items() if value is not UNSET}
        sent = (name for name in raw if name in self.types)
        return {name: value for name in sent if (value := getattr(decoded, name)) is not UNSET}

    def _each(self, raw: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
        good: dict[str, Any] = {}
        for name in raw.keys() & self.types.keys():
            try:
                good[name] = msgspec.convert(raw[name], self.types[name])
            except MISFITS as error:
                wrong.append(f"{name}: {clean(str(error), 200)}")
        return good


def _default(item: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """Return the default of a field for `msgspec.defstruct`, as a tuple; empty without one."""
    if item.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=item.default_factory),)
    return () if item.default is msgspec.NODEFAULT else (item.default,)


_TOLD = {
    **{item.name: item.type for item in msgspec.structs.fields(Process) if item.name != "node"},
    "denied": tuple[Text, Text | None]
    | None,  # the reason, and a fix in the form of `hangtop_probe.wire.fixes`
    "threads": list[ThreadRow],
}
_PROCESS = Fields({**_TOLD, "meters": MetersPart})
_WHOLE: Any = msgspec.defstruct(
    "Whole",
    [
        (item.name, _TOLD[item.name], *_default(item))
        for item in msgspec.structs.fields(Process)
        if item.name in _TOLD
    ],
    gc=False,
)
"""A process that is sent for the first time: the fields of `Process`, in their order."""
_process: Callable[..., Process] = Process
_AT = {name: place for place, name in enumerate(_WHOLE.__struct_fields__)}
_STARTED, _DENIED, _THREADS = _AT["started_at"], _AT["denied"], _AT["threads"]
_OWN = frozenset(
    {
        "load1",
        "memory_total",
        "memory_available",
        "shm_total",
        "shm_free",
        "mounts",
        "addresses",
        "cpus",
        "processes",
        "python_processes",
        "other_users",
        "capabilities",
        "cgroups",
        "oom_kills",
        "memory_full",
        "io_full",
        "kernel_lines",
        "full_mounts",
        "full_quotas",
        "no_inodes",
    }
)
"""Fields of a node that pieces may change."""
_NODE = Fields({i.name: i.type for i in msgspec.structs.fields(Node) if i.name in _OWN})


def pid_of(key: str) -> int | None:
    """Return the process id in a key of `set` or `gone`, or None."""
    return int(key) if key.isdecimal() and len(key) < 11 else None


def read_whole(raw: object, strings: Mapping[int, str], node: str, skew: float) -> Process | None:
    """Return a process that is sent for the first time; None unless all of it is valid.

    The effect is that of `read_changes`, but all at once: thousands arrive at the start.
    """
    try:
        values = list(msgspec.structs.astuple(msgspec.convert(raw, _WHOLE)))
        values[_THREADS] = threads(values[_THREADS], strings)
    except (*MISFITS, KeyError):
        return None
    values[_STARTED] -= skew
    if values[_DENIED] is not None:
        values[_DENIED] = fixes.denied(*values[_DENIED])
    return _process(*values, node)


def read_changes(raw: object, strings: Mapping[int, str]) -> tuple[dict[str, Any], list[str]]:
    """Decode the changed fields of one process; return them, and the errors.

    ``meters`` has its changed fields by name.
    """
    if not isinstance(raw, dict):
        return {}, ["is not an object"]
    wrong: list[str] = []
    changes = _PROCESS.read(raw, wrong)
    if changes.get("denied") is not None:
        changes["denied"] = fixes.denied(*changes["denied"])
    if "meters" in changes:
        changes["meters"] = sent_values(changes["meters"], raw["meters"])
    if "threads" in changes:
        try:
            changes["threads"] = threads(changes["threads"], strings)
        except KeyError as error:
            del changes["threads"]
            wrong.append(f"threads: {error}")
    return changes, wrong


def read_node(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Decode the changed fields of a node; return them, and the errors."""
    wrong: list[str] = []
    fields = _NODE.read(raw, wrong)
    if "capabilities" in fields:
        fields["capabilities"] = fixes.worded(fields["capabilities"])
    return fields, wrong
