"""Answers of a reader process to its parent: traces, packed so that equal parts are equal bytes.

Ranks of one job call the same operations at the same places: the parent decodes each distinct call,
stack and group once, and a thousand traces share them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from hangtop_core.dumps.find import Kind
from hangtop_core.model.recorder.columns import check
from hangtop_core.model.recorder.trace import Call, GroupInfo, Trace
from hangtop_core.model.snapshot import Frame

if TYPE_CHECKING:
    from typing import BinaryIO

LENGTH = struct.Struct("<I")


class Ask(Struct):
    """A request to read this file."""

    path: bytes
    rank: int


class Answer(Struct):
    """A trace in parts, or why there is none."""

    kind: Kind | Literal[""] = ""
    """Kind of a problem; empty for a trace."""
    why: str = ""
    trace: Trace | None = None
    calls: tuple[bytes, ...] = ()
    sites: tuple[bytes, ...] = ()
    groups: tuple[bytes, ...] = ()


ASK = msgspec.msgpack.Decoder(Ask)
ANSWER = msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.Encoder().encode


def frame(message: Ask | Answer) -> bytes:
    """Return a message with its length before it."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body


def receive(stream: BinaryIO) -> bytes | None:
    """Return the next message of a stream; None at its end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return stream.read(LENGTH.unpack(head)[0])


def pack(trace: Trace) -> Answer:
    """Take a trace apart."""
    answer = Answer(
        trace=trace,
        calls=tuple(map(_encode, trace.calls)),
        sites=tuple(map(_encode, trace.sites)),
        groups=tuple(map(_encode, trace.groups)),
    )
    trace.calls, trace.sites, trace.groups = (), (), ()
    return answer


class Unpacker:
    """Rebuild traces, keeping every distinct part once."""

    def __init__(self) -> None:
        self._calls = _Parts(Call)
        self._sites = _Parts(tuple[Frame, ...])
        self._groups = _Parts(GroupInfo)

    def unpack(self, answer: Answer) -> Trace:
        """Return the trace of an answer that has one.

        Raises:
            ValueError: its parts do not fit together.
        """
        trace = answer.trace
        if trace is None:
            raise ValueError("it has no trace")
        trace.calls = tuple(map(self._calls.__getitem__, answer.calls))
        trace.sites = tuple(map(self._sites.__getitem__, answer.sites))
        trace.groups = tuple(map(self._groups.__getitem__, answer.groups))
        check(trace)
        return trace


class _Parts(dict[bytes, Any]):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def __missing__(self, data: bytes) -> Any:
        part = self[data] = self._decode(data)
        return part
