"""Pieces of long texts a node sends: the report of NCCL's RAS, and the ends of log files."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hangtop_core.attach.messages import Count, Key, Pid, Time
from hangtop_core.model import Failure
from hangtop_core.text import Text


class RasPiece(Struct, frozen=True):
    """A part of NCCL's report."""

    text: Annotated[str, Meta(max_length=4 << 20)]


class RasEnd(Struct, frozen=True):
    """Who gave it."""

    pid: Pid
    at: Time
    start: int | None = None
    took: Time = 0.0
    form: Literal["json", "text"] = "text"
    version: Text = ""
    address: Text = ""


class LogPiece(Struct, frozen=True):
    """The end of a log file, or that another process prints to it."""

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
