"""Answers of nodes to `nettest`, decoded with limits; see `hangtop_probe.nettest.nettest`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from hangtop_core.text.clean import Text

Small = Annotated[int, Meta(ge=-(2**31), le=2**32)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Name = Annotated[str, Meta(max_length=255)]
MANY = 4096


class Address(Struct, frozen=True):
    """An address of an interface."""

    address: Name
    length: Annotated[int, Meta(ge=0, le=128)]
    """Bits of its network."""
    scope: Name = "global"


class Link(Struct, frozen=True):
    """An interface."""

    name: Name
    kind: Name
    """loopback, ethernet, infiniband, container, or the kernel's name of a virtual interface."""
    up: bool = False
    state: Name = "unknown"
    mtu: Small | None = None
    master: Name | None = None
    addresses: Annotated[tuple[Address, ...], Meta(max_length=64)] = ()


class Python(Struct, frozen=True):
    """An interpreter that was tried."""

    path: Text
    version: Name | None = None
    torch: Name | None = None
    why: Text | None = None
    """Why it could not be tried."""


class Look(Struct, frozen=True):
    """The equipment of a node."""

    hostname: Name = ""
    system: Name = ""
    links: Annotated[tuple[Link, ...], Meta(max_length=256)] = ()
    default: Name | None = None
    ephemeral: Annotated[tuple[Port, ...], Meta(max_length=2)] = ()
    settings: Annotated[dict[Name, Name], Meta(max_length=16)] = field(default_factory=dict)
    pythons: Annotated[tuple[Python, ...], Meta(max_length=16)] = ()


Resolved = Annotated[tuple[Name, ...], Meta(max_length=64)] | Text


class NamesPiece(Struct, frozen=True):
    """Names and addresses as one node resolves them; a text is the reason for no answer."""

    names: Annotated[dict[Name, Resolved], Meta(max_length=MANY)] = field(default_factory=dict)
    reverse: Annotated[dict[Name, Name | None], Meta(max_length=MANY)] = field(default_factory=dict)
    sources: Annotated[dict[Name, Text], Meta(max_length=MANY)] = field(default_factory=dict)


class Opened(Struct, frozen=True):
    """A port that was to be opened."""

    asked: Port
    port: Port | None = None
    why: Text | None = None
    owner: Text | None = None


class OpenedPiece(Struct, frozen=True):
    """The ports of one node."""

    opened: Annotated[tuple[Opened, ...], Meta(max_length=16)]


class Called(Struct, frozen=True):
    """The result of one connection."""

    id: Annotated[int, Meta(ge=0, le=10**9)]
    how: Text
    took: Seconds = 0.0


class CalledPiece(Struct, frozen=True):
    """Some connections of one node."""

    calls: Annotated[tuple[Called, ...], Meta(max_length=MANY)]


class ListenEnd(Struct, frozen=True):
    """Callers of the open ports."""

    strangers: Small = 0


class Torch(Struct, frozen=True):
    """The first message of a process with torch."""

    python: Name = ""
    path: Text = ""
    pid: Small = 0
    torch: Name | None = None
    took: Seconds | None = None
    why: Text | None = None
    backends: Annotated[tuple[Name, ...], Meta(max_length=8)] = ()
    gpus: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class Say(Struct, frozen=True):
    """A message of a process with torch."""

    hello: Torch | None = None
    job: Small | None = None
    begin: Name | None = None
    end: Name | None = None
    took: Seconds | None = None
    value: Any = None
    """By step; checked before use."""
    error: Text | None = None
    wrong: bool = False
    """Whether a result is wrong although nothing failed."""
    done: bool = False


class RankPiece(Struct, frozen=True):
    """Output of a process with torch: a message, or printed lines."""

    say: Say | None = None
    lines: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


class RankEnd(Struct, frozen=True):
    """The end of a process with torch."""

    code: Small | None = None
    """None if it was ended from outside."""
    lines: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


Rates = Annotated[
    tuple[tuple[Small, Annotated[int, Meta(ge=0, le=2**62)]], ...], Meta(max_length=8)
]
"""Distance between ranks and bytes per second, for the step `bandwidth`."""
Numerics = Annotated[
    dict[Name, Annotated[tuple[Name, ...], Meta(max_length=64)]], Meta(max_length=32)
]
"""Results by name as texts of float.hex, for the step `numerics`."""
