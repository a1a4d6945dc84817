"""What nodes answer to `nettest`, decoded with limits; see `hangtop_probe.nettest.nettest`."""

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
    """One address of an interface."""

    address: Name
    length: Annotated[int, Meta(ge=0, le=128)]
    """Bits of its network."""
    scope: Name = "global"


class Link(Struct, frozen=True):
    """One interface."""

    name: Name
    kind: Name
    """loopback, ethernet, infiniband, container, or the kernel's name of what is virtual."""
    up: bool = False
    state: Name = "unknown"
    mtu: Small | None = None
    master: Name | None = None
    addresses: Annotated[tuple[Address, ...], Meta(max_length=64)] = ()


class Python(Struct, frozen=True):
    """One interpreter that was tried."""

    path: Text
    version: Name | None = None
    torch: Name | None = None
    why: Text | None = None
    """Why it could not be tried."""


class Look(Struct, frozen=True):
    """What a node has."""

    hostname: Name = ""
    system: Name = ""
    links: Annotated[tuple[Link, ...], Meta(max_length=256)] = ()
    default: Name | None = None
    ephemeral: Annotated[tuple[Port, ...], Meta(max_length=2)] = ()
    settings: Annotated[dict[Name, Name], Meta(max_length=16)] = field(default_factory=dict)
    pythons: Annotated[tuple[Python, ...], Meta(max_length=16)] = ()


Resolved = Annotated[tuple[Name, ...], Meta(max_length=64)] | Text


class NamesPiece(Struct, frozen=True):
    """Names and addresses as one node sees them; a text is why there is no answer."""

    names: Annotated[dict[Name, Resolved], Meta(max_length=MANY)] = field(default_factory=dict)
    reverse: Annotated[dict[Name, Name | None], Meta(max_length=MANY)] = field(default_factory=dict)
    sources: Annotated[dict[Name, Text], Meta(max_length=MANY)] = field(default_factory=dict)


class Opened(Struct, frozen=True):
    """One port that was to be opened."""

    asked: Port
    port: Port | None = None
    why: Text | None = None
    owner: Text | None = None


class OpenedPiece(Struct, frozen=True):
    """The ports of one node."""

    opened: Annotated[tuple[Opened, ...], Meta(max_length=16)]


class Called(Struct, frozen=True):
    """How one connection went."""

    id: Annotated[int, Meta(ge=0, le=10**9)]
    how: Text
    took: Seconds = 0.0


class CalledPiece(Struct, frozen=True):
    """Some connections of one node."""

    calls: Annotated[tuple[Called, ...], Meta(max_length=MANY)]


class ListenEnd(Struct, frozen=True):
    """Who came."""

    strangers: Small = 0


class Torch(Struct, frozen=True):
    """What a process with torch says of itself first."""

    python: Name = ""
    path: Text = ""
    pid: Small = 0
    torch: Name | None = None
    took: Seconds | None = None
    why: Text | None = None
    backends: Annotated[tuple[Name, ...], Meta(max_length=8)] = ()
    gpus: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class Say(Struct, frozen=True):
    """One message of a process with torch."""

    hello: Torch | None = None
    job: Small | None = None
    begin: Name | None = None
    end: Name | None = None
    took: Seconds | None = None
    value: Any = None
    """By step; checked where it is used."""
    error: Text | None = None
    wrong: bool = False
    """Nothing failed, but a result is wrong."""
    done: bool = False


class RankPiece(Struct, frozen=True):
    """Something from a process with torch: a message, or lines that it printed."""

    say: Say | None = None
    lines: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


class RankEnd(Struct, frozen=True):
    """How a process with torch ended."""

    code: Small | None = None
    """None: it was ended."""
    lines: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


Rates = Annotated[
    tuple[tuple[Small, Annotated[int, Meta(ge=0, le=2**62)]], ...], Meta(max_length=8)
]
"""Distance between ranks and bytes a second, for the step `bandwidth`."""
Numerics = Annotated[
    dict[Name, Annotated[tuple[Name, ...], Meta(max_length=64)]], Meta(max_length=32)
]
"""Results by name as texts of float.hex, for the step `numerics`."""
