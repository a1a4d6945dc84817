"""All results of a network test, for judges and reports: no I/O here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct, field

from hangtop_core.model.node.check import Clock  # msgspec needs these types at run time
from hangtop_core.nettest import answers
from hangtop_core.text.commands import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["chosen", "any"]
"""The kind of port: the chosen one, or one from the kernel, as gloo and NCCL use."""
Level = Literal["failure", "warning", "note"]
Pair = tuple[str, str]
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
DEFAULT_PORT = 29500
"""torch's own default (torch/distributed/run.py)."""


SETTING = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
"""By backend: the variable with the interface that its ranks use."""


class Spot(Struct, frozen=True):
    """The tested address of a node, on one interface."""

    interface: str
    address: str
    length: int
    mtu: int | None = None
    kind: str = ""


class Names(Struct, frozen=True):
    """Names, addresses and routes as one node resolves them."""

    names: dict[str, tuple[str, ...] | str] = field(default_factory=dict)
    reverse: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


class Way(Struct, frozen=True):
    """A connection from a node to a port of another; `took` in seconds."""

    source: str
    target: str
    kind: Kind
    port: int
    how: str
    took: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it worked, with a load."""
        return self.how == "ok"


STEPS = ("store", "init", "barrier", "all_reduce", "bandwidth", "numerics", "memory")
"""Steps of a job's ranks, in this order."""


class Member(Struct, frozen=True):
    """A process of a job: its node, its name there, its device."""

    node: str
    name: str = "0"
    device: str = "cpu"

    @property
    def place(self) -> str:
        """Return its name for people."""
        return self.node if self.device == "cpu" else f"{self.node} {self.device}"


class Outcome(Struct, frozen=True):
    """The result of a job for one member."""

    member: Member
    took: dict[str, float] = field(default_factory=dict)
    """Seconds by successful step."""
    step: str | None = None
    """The step that failed or is stuck."""
    error: str | None = None
    wrong: bool = False
    stuck: bool = False
    gone: bool = False
    """Whether its process, or the connection to its node, has ended."""
    rates: tuple[tuple[int, int], ...] = ()
    """Distance to the sending rank, and bytes per second."""
    numerics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Computed results by name, as texts of float.hex."""

    @property
    def ok(self) -> bool:
        """Whether all steps succeeded."""
        return self.step is None and self.error is None


class JobRun(Struct, frozen=True):
    """A job over some members."""

    backend: str
    outcomes: tuple[Outcome, ...]
    forced: bool = False
    """Whether ranks were given the interface."""
    units: tuple[str, ...] = ()
    """For a smaller job: its nodes, or the GPUs of one node."""

    @property
    def ok(self) -> bool:
        """Whether all members succeeded."""
        return all(outcome.ok for outcome in self.outcomes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return its distinct nodes."""
        return tuple(dict.fromkeys(outcome.member.node for outcome in self.outcomes))


class Facts(Struct):
    """All results; filled by `conduct`, phase by phase."""

    nodes: tuple[str, ...] = ()
    port: int = DEFAULT_PORT
    missing: dict[str, str] = field(default_factory=dict)
    """Nodes that were not reached, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Nodes that could not do a part of the test, and why."""
    looked: dict[str, answers.Look] = field(default_factory=dict)
    spots: dict[str, Spot] = field(default_factory=dict)
    names: dict[str, Names] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Relative to this machine's clock."""
    opened: dict[str, tuple[answers.Opened, ...]] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    strangers: dict[str, int] = field(default_factory=dict)
    """Number of callers without the token, by node."""
    listened_s: float = 0.0
    no_torch: dict[str, str] = field(default_factory=dict)
    torch: dict[str, answers.Torch] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Nodes with torch that were left out of the job, and why."""
    jobs: list[JobRun] = field(default_factory=list)
    pair_jobs: list[JobRun] = field(default_factory=list)
    """Jobs of two nodes or GPUs, which find the culprit or each pair's bandwidth."""
    alone: list[JobRun] = field(default_factory=list)
    """Jobs of one GPU each, after one over all has failed."""
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of torch and NCCL, by node."""
    took_s: float = 0.0
    interrupted: bool = False

    @property
    def present(self) -> tuple[str, ...]:
        """Nodes that have answered."""
        return tuple(node for node in self.nodes if node in self.looked)

    def at(self, node: str) -> str:
        """Return `node-2 (10.77.0.3)`."""
        spot = self.spots.get(node)
        return f"{node} ({spot.address})" if spot is not None else node

    def hostname(self, node: str) -> str:
        """Return a node's own name if it is a valid host name: it gets into shown commands."""
        look = self.looked.get(node)
        said_so = look is not None and _HOST.fullmatch(look.hostname)
        return look.hostname if look is not None and said_so else node

    def own(self, node: str) -> frozenset[str]:
        """Return all addresses of a node."""
        look = self.looked.get(node)
        links: Iterable[answers.Link] = look.links if look is not None else ()
        return frozenset(address.address for link in links for address in link.addresses)

    def is_misled(self, node: str) -> bool:
        """Whether a node's own name or settings lead to another address than the tested one."""
        table, look, spot = self.names.get(node), self.looked.get(node), self.spots.get(node)
        if table is None or look is None or spot is None:
            return True
        resolved = table.names.get(look.hostname)
        return (
            "GLOO_SOCKET_IFNAME" in look.settings
            or resolved is None
            or resolved[:1] != (spot.address,)
        )


class Finding(Struct, frozen=True):
    """A problem or a fact worth knowing: nodes, evidence, next steps."""

    cause: str
    level: Level
    summary: str
    nodes: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    """Source and target nodes of failing connections."""
    evidence: tuple[str, ...] = ()
    next_steps: tuple[Step, ...] = ()


class Wanted(NamedTuple):
    """Options of a test."""

    port: int
    interface: str | None = None
    python: str = "python3"
    limit: float = 10.0
    """Seconds for each wait of a job's ranks."""
    connect_limit: float = 2.0
    """Seconds for one connection."""
    job: bool = True
    pairs: bool = False
    """Whether each pair of nodes gets a job of its own, with its bandwidth."""
    size: int = 8 << 20
    """Bytes that ranks send each other, for the bandwidth."""
