"""`hangtop files`: the open files of a rank, and which processes on its node share them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.commands.strace import socket_ends
from hangtop.cli.jobs.observe import chosen_ranks
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop_core.analysis.openers import (
    holder_text,
    how_many,
    opener_text,
    openers_text,
    process_names,
)
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import RefusedError, RequestError, UsageError
from hangtop_core.session.session import Session
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.rank_sets import rank_label
from hangtop_core.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from hangtop_core.model.descriptors import Descriptor, Socket
    from hangtop_core.model.snapshot import DescriptorTable, Rank, Snapshot

SCHEMA = "hangtop.files/1"
ANSWER_S = 30.0
BETWEEN_S = 1.0
"""Seconds between two readings, which show whether positions change."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        ranks = chosen_ranks(session, arguments, arguments.rank)
        if len(ranks) != 1:
            raise UsageError(f"one rank at a time, not {arguments.rank or len(ranks)}")
        rank = ranks[0]
        if arguments.fd is not None:
            return who_has(session, rank, arguments)
        pid = rank.process.pid
        names = socket_ends(session, [rank]).get((rank.node, pid), {})
        table = session.descriptors(rank.node, [pid]).result(ANSWER_S).get(pid)
        if table is not None and any(
            descriptor.position is not None for descriptor in table.descriptors
        ):
            time.sleep(BETWEEN_S)
            table = session.descriptors(rank.node, [pid]).result(ANSWER_S).get(pid)
        latest = session.latest
    if table is None:
        raise RequestError("the rank is gone")
    if table.failure is not None:
        raise RequestError(clean(table.failure.text))
    names = {**names, **holders(table, latest.snapshot if latest is not None else None, rank.node)}
    renamer = redacting.of(arguments)
    if renamer.names:
        table, names = renamer.one(table), renamer.data(names)
    show(rank, table, names, renamer.text(rank.node), as_json=arguments.json)
    return 0


def end_of(item: Descriptor) -> str:
    """Return the key of a descriptor's other end: the two ends of a pipe have one name."""
    return f"{item.socket.local}->{item.socket.remote}" if item.socket else f"fd {item.fd}"


def holders(table: DescriptorTable, snapshot: Snapshot | None, node: str) -> dict[str, str]:
    """Return the holders of other ends of pipes, and of locks, by `end_of`."""
    names = process_names(snapshot, node) if snapshot is not None else {}
    return {
        end_of(item): ", ".join(holder_text(names, holder) for holder in item.holders)
        for item in table.descriptors
        if item.holders and not item.socket
    }


def who_has(session: Session, rank: Rank, arguments: argparse.Namespace) -> int:
    """Report which other processes have one descriptor's file, pipe or socket open."""
    pid = rank.process.pid
    try:
        openers = session.holders(rank.node, pid, arguments.fd).result(ANSWER_S)
    except RefusedError as error:
        if error.kind != "missing":
            raise
        what = f"{rank.name} has no descriptor {arguments.fd} now"
        raise RequestError(what, f"Those it has: hangtop files {rank_label(rank.rank)}") from None
    latest = session.latest
    if latest is None:
        raise RequestError("the node has left")
    snapshot = latest.snapshot
    renamer = redacting.of(arguments)
    if arguments.json:
        names = process_names(snapshot, rank.node)
        rows = [
            {**msgspec.to_builtins(opener), "whose": opener_text(names, opener)}
            for opener in openers.holders
        ]
        document = renamer.data({**msgspec.to_builtins(openers), "holders": rows})
        print(to_json({"schema": SCHEMA, "hangtop": __version__, **document}).decode())
        return 0
    for line in openers_text(snapshot, rank, arguments.fd, openers):
        print(renamer.text(line))
    return 0


def show(
    rank: Rank, table: DescriptorTable, names: dict[str, str], node: str, *, as_json: bool
) -> None:
    """Print all descriptors; ``node`` is the name to show for the rank's node."""
    rows: list[dict[str, Any]] = [
        {
            **msgspec.to_builtins(item),
            "moves": table.moves(item),
            "other_end": names.get(end_of(item)),
        }
        for item in table.descriptors
    ]
    if as_json:
        head = {"schema": SCHEMA, "hangtop": __version__, "rank": rank.rank, "node": node}
        print(to_json({**head, "descriptors": rows}).decode())
        return
    print(f"{rank.name}  {how_many(table, rank.process)} of pid {rank.process.pid}")
    for item, row in zip(table.descriptors, rows, strict=True):
        ends = ""
        if socket := item.socket:
            ends = "  " + clean(f"{socket.local} -> {socket.remote} {socket.state}", 300)
        peer = f"  = {clean(row['other_end'], 200)}" if row["other_end"] else ""
        mode, state = clean(item.mode, 8), state_of(item, moves=row["moves"])
        more = f"  ({state})" if state else ""
        print(f"  {item.fd:>5} {mode:<2}  {clean(item.target, 300)}{ends}{peer}{more}")


def state_of(item: Descriptor, *, moves: bool | None) -> str:
    """Return `4.0 KiB of 64 MiB, moves`, `128000 bytes not read`; empty without a state."""
    states = []
    if item.position is not None and (item.position or item.size):
        whole = f" of {size(item.size)}" if item.size is not None else ""
        motion = "" if moves is None else ", moves" if moves else ", does not move"
        states.append(f"at {size(item.position)}{whole}{motion}")
    if item.locked:
        states.append(f"lock {clean(item.locked, 40)}")
    if item.full:
        states.append(f"no {item.full} left on {clean(item.mount or '?', 100)}")
    if item.server:
        far = f"{item.mount or '?'}: {item.fstype or '?'} of {item.server}"
        states.append(f"on {clean(far, 200)}")
    if item.socket:
        states += _queues(item.socket)
    return ", ".join(states)


def _queues(socket: Socket) -> Iterator[str]:
    """Yield the bytes waiting in the queues of a socket."""
    if socket.recv_queue and socket.state == "LISTEN":
        yield f"{plural(socket.recv_queue, 'connection')} not accepted"
    elif socket.recv_queue:
        yield f"{plural(socket.recv_queue, 'byte')} not read"
    if socket.send_queue:
        yield f"{plural(socket.send_queue, 'byte')} written and not acknowledged"
    if socket.retransmits:
        yield f"sent again {plural(socket.retransmits, 'time')}"
