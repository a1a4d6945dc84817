"""NCCL's own report of a job (RAS), asked of a rank that listens for it.

Since NCCL 2.24 every process has a thread that answers, on NCCL_RAS_ADDR or localhost:28028, what
all processes of the job know of their communicators (NCCL: src/ras/client_support.cc). To ask
makes these threads in all ranks talk to one another, and in many versions that has ended jobs. So
it is done only when a person wants it, once, where the version is not known for that, and only on
a socket that the ranks of this job, and nobody else, listen on.

The protocol is lines of text: `TIMEOUT 5`, `SET FORMAT json`, `STATUS`. The answer ends with the
connection. What it says is read by the head (hangtop_core/model/recorder/ras.py).
"""

from __future__ import annotations

import re
import socket
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..net.sockets import Socket, listeners, own_inodes
from ..node import permission
from ..proc import procfs
from ..ranks import versions
from ..secrets import mask
from ..wire import fixes
from ..wire.requests import Message, Refused, Request, clock, pids_of

DEFAULT = "localhost:28028"
MAX_ANSWER = 32 << 20
"""Bytes; 8,192 ranks in four communicators each take about 20 million."""
PART = 1 << 20
"""Characters of the answer in one piece."""
SECONDS = 10.0
GREETINGS = 8
GREETING_S = 1.0
LEG_SECONDS = 5
"""What RAS may wait for one of its own answers: its default."""

_FIRST = (2, 24, 0)
_JSON = (2, 28, 7)
HAZARDS: Tuple[Tuple[Tuple[int, ...], str], ...] = (
    ((2, 27, 3), "it can crash a job that is asked while it makes a communicator"),
    ((2, 29, 2), "it corrupts the memory of a rank that is asked while others are missing"),
)
"""Versions before these, and why they are not asked: NCCL's issues 1669 and 1718, and 1762."""

_ENABLED = "NCCL_RAS_ENABLE"
_ADDRESS = "NCCL_RAS_ADDR"
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens everywhere is near
_NUMBER = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
_SWITCHED_OFF = "the rank was started with NCCL_RAS_ENABLE=0"


class Listener(NamedTuple):
    """Where a rank answers."""

    pid: int
    address: str
    """`127.0.0.1:28028`, `[::1]:28028`."""
    version: str
    number: Tuple[int, ...]


def handle(request: Request, rights: permission.Rights) -> Message:
    """Answer `ras`: the report in pieces of text, then who gave it.

    `pids` are the ranks of one job on this node; `anyway` asks whatever the version is.
    """
    pids = pids_of(request.message)
    anyway = request.message.get("anyway") is True
    listener = find(pids, rights, anyway)
    seconds = request.message.get("seconds")
    limit = float(seconds) if isinstance(seconds, (int, float)) and 0 < seconds <= 60 else SECONDS
    began = time.monotonic()
    form, answer = ask(listener, limit)
    text = procfs.text(answer)
    for at in range(0, len(text), PART):
        request.give({"text": text[at : at + PART]})
    return {
        "pid": listener.pid,
        "start": getattr(procfs.read_stat(listener.pid), "start", None),
        "at": clock(),
        "took": round(time.monotonic() - began, 3),
        "form": form,
        "version": listener.version,
        "address": listener.address,
    }


def find(pids: List[int], rights: permission.Rights, anyway: bool = False) -> Listener:
    """Return where one of the ranks answers; raise `Refused` with the reason when none may be."""
    reasons: Dict[str, Tuple[str, Optional[str]]] = {}
    for pid in pids:
        try:
            return _of_rank(pid, frozenset(pids), rights, anyway)
        except Refused as refused:
            reasons.setdefault(str(refused), (refused.kind, refused.fix))
    for text, (kind, fix) in reasons.items():
        raise Refused(kind, text, fix)
    raise Refused("missing", "no rank was named")


def _of_rank(
    pid: int, ranks: "frozenset[int]", rights: permission.Rights, anyway: bool
) -> Listener:
    environment = procfs.environ(pid)
    if environment is None:
        raise Refused("denied", *permission.why_denied(pid, rights))
    version = versions.nccl(pid)
    if version is None:
        raise Refused("missing", "the rank has no NCCL loaded whose version can be told")
    number = parse_version(version)
    if number < _FIRST:
        raise Refused("missing", "NCCL %s has no RAS: it came with 2.24" % version)
    hazard = hazard_of(number)
    if hazard is not None and not anyway:
        text = "NCCL %s is not asked: %s" % (version, hazard)
        raise Refused("unsupported", text, fixes.RAS_SAFE)
    if environment.get(_ENABLED) == "0":
        raise Refused("missing", _SWITCHED_OFF, fixes.RAS_ENABLE)
    if not procfs.shares(pid, "net"):
        text = "the rank is in a network of its own, and its RAS is not reached from outside"
        raise Refused("unsupported", text, fixes.INSIDE)
    told = environment.get(_ADDRESS) or DEFAULT
    found = _listening(pid, told, ranks)
    return Listener(pid, found.local, version, number)


def parse_version(text: str) -> Tuple[int, ...]:
    """`2.27.5` as numbers; (0, 0, 0) where there are none. NCCL writes `2.30` for 2.30.0, too."""
    match = _NUMBER.match(text)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)


def hazard_of(number: Tuple[int, ...]) -> Optional[str]:
    """Why a version is not asked, or None."""
    return next((why for before, why in HAZARDS if number < before), None)


def _listening(pid: int, told: str, ranks: "frozenset[int]") -> Socket:
    """The socket of a rank that listens at an address, if nobody outside ``ranks`` does."""
    host, _, port = told.rpartition(":")
    every = listeners("/proc/%d/net" % pid, port)
    own = own_inodes(pid)
    mine = [one for one in every if one.inode in own and _is_at(one.local, host)]
    if not mine:
        # Its thread has a name of its own only with NCCL_SET_THREAD_NAME=1.
        text = "the rank listens to nothing at %s: it may have made no communicator yet"
        text %= mask.mask_path(told)
        raise Refused("missing", text, fixes.RAS_LOG)
    of_job = own.union(*(own_inodes(other) for other in ranks if other != pid))
    strangers = [one for one in every if one.inode not in of_job and one.local == mine[0].local]
    if strangers:
        # They share the port (SO_REUSEPORT): any of them may get the question.
        text = "processes of another job listen at %s, too: they could be asked instead"
        raise Refused("unsupported", text % mine[0].local, fixes.RAS_ADDR)
    return mine[0]


def _is_at(local: str, host: str) -> bool:
    """Whether an address in numbers is what the environment may mean.

    Of a name of this node the port and the owner decide.
    """
    return host != "localhost" or local.rpartition(":")[0] in ("127.0.0.1", "[::1]")


def ask(listener: Listener, seconds: float = SECONDS) -> Tuple[str, bytes]:
    """Ask once and return the form of the answer, `json` or `text`, and the answer.

    Raise `Refused` when it says nothing whole in ``seconds`` in all.
    """
    deadline = time.monotonic() + seconds
    form = "json" if listener.number >= _JSON else "text"
    try:
        with _greeted(listener, deadline) as connection:
            line = _Line(connection, deadline)
            if form == "json":
                line.say("SET FORMAT json", "OK")
            connection.sendall(b"STATUS\n" if form == "json" else b"VERBOSE STATUS\n")
            return form, line.rest()
    except socket.timeout:
        text = "RAS at %s gave no whole answer in %g s" % (listener.address, seconds)
        raise Refused("timeout", text + ": a rank that RAS waits for does not answer it") from None
    except (OSError, ValueError) as error:
        text = "RAS at %s: %s" % (listener.address, str(error)[:200])
        raise Refused("error", text) from error


def _greeted(listener: Listener, deadline: float) -> socket.socket:
    """Connect to a rank that answers for itself at once.

    The ranks of a node share the port and the kernel picks one of them, by the port of ours: also
    one that is stopped, which would never answer. To greet asks nothing of the other ranks.
    """
    host, _, port = listener.address.rpartition(":")
    bound = host.strip("[]")
    address = _LOCAL.get(bound, bound), int(port)
    for left in range(GREETINGS, 0, -1):
        until = min(deadline, time.monotonic() + GREETING_S)
        try:
            # One that is stopped and has been greeted often does not even connect.
            return _greet(address, until)
        except socket.timeout:
            if left == 1 or time.monotonic() >= deadline:
                raise
    raise socket.timeout


def _greet(address: Tuple[str, int], until: float) -> socket.socket:
    connection = socket.create_connection(address, timeout=max(0.1, until - time.monotonic()))
    try:
        _Line(connection, until).say("TIMEOUT %d" % LEG_SECONDS, "OK")
    except BaseException:
        connection.close()
        raise
    return connection


class _Line:
    """Reads what a server says, within a deadline and a limit."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self._deadline = deadline
        self._data = bytearray()

    def _more(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout
        self.connection.settimeout(left)
        part = self.connection.recv(1 << 18)
        self._data += part
        if len(self._data) > MAX_ANSWER:
            raise ValueError("an answer of more than %d MiB" % (MAX_ANSWER >> 20))
        return bool(part)

    def say(self, command: str, wanted: str) -> None:
        """Send a command; raise ValueError when the answer is another one."""
        self.connection.sendall(command.encode("ascii") + b"\n")
        while b"\n" not in self._data:
            if len(self._data) > 4096 or not self._more():
                raise ValueError("speaks another language: %r" % bytes(self._data[:80]))
        answer, _, rest = bytes(self._data).partition(b"\n")
        self._data = bytearray(rest)
        if answer.strip() != wanted.encode("ascii"):
            raise ValueError("to %r it says %s" % (command, procfs.text(answer)[:80]))

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        while self._more():
            pass
        if not self._data:
            raise ValueError("closed the connection without an answer")
        return bytes(self._data)
