"""Pieces of long texts from a node: the report of NCCL's RAS, and the ends of log files."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hangtop_core.attach.wire.messages import Key, Pid, Time
from hangtop_core.model.numerics import First, Header, Note, Seen
from hangtop_core.model.snapshot import Failure
from hangtop_core.text.clean import Count, Text


class RasPiece(Struct, frozen=True):
    """A part of NCCL's report."""

    text: Annotated[str, Meta(max_length=4 << 20)]


class RasEnd(Struct, frozen=True):
    """The process that gave the report."""

    pid: Pid
    at: Time
    start: int | None = None
    took: Time = 0.0
    form: Literal["json", "text"] = "text"
    version: Text = ""
    address: Text = ""


class LogPiece(Struct, frozen=True):
    """The end of a log file, or a further process that prints to it."""

    at: Time
    path: Text
    pid: Pid | None = None
    fd: int | None = None
    inode: Key | None = None
    size: Count = 0
    changed: Time = 0.0
    start: Count = 0
    text: Annotated[str, Meta(max_length=1 << 21)] | None = None
    cut: bool = False
    failure: Failure | None = None


class FirstLine(First, frozen=True, kw_only=True, tag_field="type", tag="first"):
    """A line of a numerics file about the first value of a kind."""


class NoteLine(Note, frozen=True, tag_field="type", tag="note"):
    """A line of a numerics file with the reason for its end."""


class NumericsPiece(Struct, frozen=True):
    """Non-finite values that one rank has detected."""

    pid: Pid
    at: Time
    start: int | None = None
    path: Text = ""
    header: Header = field(default_factory=Header)
    lines: Annotated[tuple[FirstLine | NoteLine, ...], Meta(max_length=64)] = ()
    seen: Seen | None = None
    cut: bool = False
    failure: Failure | None = None
