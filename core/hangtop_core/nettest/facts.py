"""Everything a test of the network has found out, for judges and reports: no I/O here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct, field

from hangtop_core.model.node.check import Clock  # msgspec looks at these when encoding
from hangtop_core.nettest import said
from hangtop_core.text.commands import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["chosen", "any"]
"""Which port: the one that was chosen, or one that the kernel gave, as gloo and NCCL use."""
Level = Literal["failure", "warning", "note"]
Pair = tuple[str, str]
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
DEFAULT_PORT = 29500
"""torch's own (torch/distributed/run.py)."""


SETTING = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
"""By backend the variable that tells its ranks which interface to take."""


class Spot(Struct, frozen=True):
    """Where a node is tested: one address of one interface."""

    interface: str
    address: str
    length: int
    mtu: int | None = None
    kind: str = ""


class Names(Struct, frozen=True):
    """What one node makes of names, addresses and routes."""

    names: dict[str, tuple[str, ...] | str] = field(default_factory=dict)
    reverse: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


class Way(Struct, frozen=True):
    """One connection from a node to a port of another; `took` in seconds."""

    source: str
    target: str
    kind: Kind
    port: int
    how: str
    took: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it went through, with a load."""
        return self.how == "ok"


STEPS = ("store", "init", "barrier", "all_reduce", "bandwidth", "numerics", "memory")
"""What ranks of a job do, in this order."""


class Member(Struct, frozen=True):
    """One process of a job: on which node, which of its processes, on what."""

    node: str
    name: str = "0"
    device: str = "cpu"

    @property
    def place(self) -> str:
        """How people call it."""
        return self.node if self.device == "cpu" else f"{self.node} {self.device}"


class Outcome(Struct, frozen=True):
    """How a job went for one member."""

    member: Member
    took: dict[str, float] = field(default_factory=dict)
    """Seconds by step that went well."""
    step: str | None = None
    """The step that failed, or that it is stuck in."""
    error: str | None = None
    wrong: bool = False
    stuck: bool = False
    gone: bool = False
    """Its process, or the connection to its node, has ended."""
    rates: tuple[tuple[int, int], ...] = ()
    """Distance to the rank it received from, and bytes a second."""
    numerics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What it computed, by name, as texts of float.hex."""

    @property
    def ok(self) -> bool:
        """Whether all steps went well."""
        return self.step is None and self.error is None


class JobRun(Struct, frozen=True):
    """One job, over some members."""

    backend: str
    outcomes: tuple[Outcome, ...]
    forced: bool = False
    """Whether ranks were told the interface."""
    units: tuple[str, ...] = ()
    """Of a smaller job: the nodes, or the GPUs of one node, that it was made of."""

    @property
    def ok(self) -> bool:
        """Whether all went well for all."""
        return all(one.ok for one in self.outcomes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, each once."""
        return tuple(dict.fromkeys(one.member.node for one in self.outcomes))


class Facts(Struct):
    """All that was found out; filled by `conduct`, phase by phase."""

    nodes: tuple[str, ...] = ()
    port: int = DEFAULT_PORT
    missing: dict[str, str] = field(default_factory=dict)
    """Nodes that were not reached, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Nodes that could not do a part of the test, and why."""
    looked: dict[str, said.Look] = field(default_factory=dict)
    spots: dict[str, Spot] = field(default_factory=dict)
    names: dict[str, Names] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Against this machine's."""
    opened: dict[str, tuple[said.Opened, ...]] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    strangers: dict[str, int] = field(default_factory=dict)
    """Callers without the token, by node."""
    listened_s: float = 0.0
    no_torch: dict[str, str] = field(default_factory=dict)
    torch: dict[str, said.Torch] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Nodes with torch that were left out of the job, and why."""
    jobs: list[JobRun] = field(default_factory=list)
    pair_jobs: list[JobRun] = field(default_factory=list)
    """Jobs of two nodes or GPUs, to find out who fails, or what each pair achieves."""
    alone: list[JobRun] = field(default_factory=list)
    """Jobs of one GPU each, after one over all has failed."""
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What torch and NCCL printed, by node."""
    took_s: float = 0.0
    interrupted: bool = False

    @property
    def present(self) -> tuple[str, ...]:
        """Nodes that have answered."""
        return tuple(node for node in self.nodes if node in self.looked)

    def at(self, node: str) -> str:
        """`node-2 (10.77.0.3)`."""
        spot = self.spots.get(node)
        return f"{node} ({spot.address})" if spot is not None else node

    def hostname(self, node: str) -> str:
        """What a node calls itself, if that is a host name: it gets into commands that are told."""
        look = self.looked.get(node)
        said_so = look is not None and _HOST.fullmatch(look.hostname)
        return look.hostname if look is not None and said_so else node

    def own(self, node: str) -> frozenset[str]:
        """All addresses of a node."""
        look = self.looked.get(node)
        links: Iterable[said.Link] = look.links if look is not None else ()
        return frozenset(one.address for link in links for one in link.addresses)

    def is_misled(self, node: str) -> bool:
        """Whether a node's own name, or a setting, is not the address that is tested to itself."""
        known, look, spot = self.names.get(node), self.looked.get(node), self.spots.get(node)
        if known is None or look is None or spot is None:
            return True
        found = known.names.get(look.hostname)
        return (
            "GLOO_SOCKET_IFNAME" in look.settings or found is None or found[:1] != (spot.address,)
        )


class Finding(Struct, frozen=True):
    """One thing that is wrong, or worth knowing: who, by which signs, and what to do."""

    cause: str
    level: Level
    summary: str
    nodes: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    """From whom to whom, where it is about ways."""
    evidence: tuple[str, ...] = ()
    next_steps: tuple[Step, ...] = ()


class Wanted(NamedTuple):
    """What a test is to do."""

    port: int
    interface: str | None = None
    python: str = "python3"
    limit: float = 10.0
    """Seconds for each thing ranks of the job wait for."""
    connect_limit: float = 2.0
    """Seconds for one connection."""
    job: bool = True
    pairs: bool = False
    """Whether each pair of nodes gets a job of its own, and its bandwidth."""
    size: int = 8 << 20
    """Bytes that ranks send each other, for the bandwidth."""
