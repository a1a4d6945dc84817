"""What is known of three nodes after a test of their network, for tests of what is made of it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec

from hangtop_core.nettest import answers, judge
from hangtop_core.nettest.choose import spots
from hangtop_core.nettest.facts import Facts, Finding, JobRun, Member, Names, Outcome, Way

NODES = ("n1", "n2", "n3")
KINDS = ("chosen", "any")


def link(name: str, kind: str, *addresses: str, up: bool = True, mtu: int = 1500) -> answers.Link:
    """An interface with these addresses, each written with its prefix."""
    rows = [one.split("/") for one in addresses]
    return answers.Link(
        name, kind, up, "up", mtu, None, tuple(answers.Address(a, int(n)) for a, n in rows)
    )


def look(number: int, *more: answers.Link, **fields: Any) -> answers.Look:
    """What a node says of itself: `eth0` leads to the others, `docker0` is the same everywhere."""
    links = (
        link("lo", "loopback", "127.0.0.1/8"),
        link("docker0", "container", "172.17.0.1/16"),
        link("eth0", "ethernet", f"10.0.0.{number}/24", mtu=fields.pop("mtu", 1500)),
        *more,
    )
    return answers.Look(
        f"n{number}", links=links, default="eth0", ephemeral=(32768, 60999), **fields
    )


def facts(**fields: Any) -> Facts:
    """Three nodes between which all is well."""
    looked = fields.pop("looked", {f"n{n}": look(n) for n in (1, 2, 3)})
    right = {f"n{n}": (f"10.0.0.{n}",) for n in (1, 2, 3)}
    names = {
        f"n{n}": Names(dict(right), {}, {f"10.0.0.{m}": f"10.0.0.{n}" for m in (1, 2, 3)})
        for n in (1, 2, 3)
    }
    ways = [Way(a, b, k, 29500, "ok", 0.001) for a, b in permutations(NODES, 2) for k in KINDS]
    made = Facts(nodes=NODES, looked=looked, names=names, ways=ways)
    made.spots = spots(looked, None)
    made.jobs = [run()]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def run(*outcomes: Outcome, forced: bool = False, backend: str = "gloo") -> JobRun:
    """A job of all nodes; without ``outcomes`` one in which all went well."""
    good = tuple(Outcome(Member(node), rates=((1, 10**9), (2, 10**9))) for node in NODES)
    return JobRun(backend, outcomes or good, forced)


def causes(made: Facts) -> list[tuple[str, str]]:
    """Level and cause of each finding."""
    return [(one.level, one.cause) for one in judge.findings(made)]


def only(made: Facts) -> Finding:
    """The only finding."""
    (one,) = judge.findings(made)
    return one


def broken(made: Facts, how: str, *pairs: str, kind: str | None = None) -> Facts:
    """The same, but these ``pairs``, written `n1-n3`, are connected as ``how`` says."""
    made.ways = [
        msgspec.structs.replace(way, how=how)
        if f"{way.source}-{way.target}" in pairs and kind in (None, way.kind)
        else way
        for way in made.ways
    ]
    return made


def failing(step: str, error: str, *nodes: str, wrong: bool = False) -> JobRun:
    """A job of all nodes in which these fail at ``step``."""
    return run(
        *(
            Outcome(Member(node), step=step, error=error, wrong=wrong)
            if node in nodes
            else Outcome(Member(node))
            for node in NODES
        )
    )


def pair(one: str, other: str, ok: bool) -> JobRun:
    """A job of two nodes."""
    step, error = (None, None) if ok else ("init", "timed out")
    made = run(*(Outcome(Member(node), step=step, error=error) for node in (one, other)))
    return msgspec.structs.replace(made, units=(one, other))
