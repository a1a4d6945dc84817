"""By which name ranks look for their store, and who is asked what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.steps import as_host, on_node
from hangtop_core.text.addresses import is_address, port_of
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.text.commands import Command


def store_name(tries: Sequence[Subject], port: str) -> str:
    """MASTER_ADDR of those that try, where it is of all of them, and the port is that beside it."""
    envs = [s.rank.process.env for s in tries]
    told = {(env.get("MASTER_ADDR", ""), env.get("MASTER_PORT")) for env in envs}
    host, beside = told.pop()
    return clean(host, 100) if not told and beside == port else ""


def resolve(subject: Subject) -> tuple[Command, ...]:
    """A command that tells what the name of the store means to a rank."""
    host = as_host(subject.rank.process.env.get("MASTER_ADDR", ""))
    if host is None or is_address(host):
        return ()
    words = "what the name means there; compare with the other nodes"
    return (on_node(subject.rank.node, "getent", "ahosts", host, why=words),)


def name_server(subject: Subject) -> Descriptor | None:
    """Its connection to a name server, which is open only as long as that has not answered."""
    some = subject.rank.opened
    return next((one for one in some if one.socket and port_of(one.socket.remote) == "53"), None)
