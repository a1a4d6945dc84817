"""Reaching nodes by pdsh, for sites where nothing else is allowed.

pdsh (2.34) starts one command on many nodes and labels their output. It never sends anything to
their standard input and never closes it, silently cuts lines beyond 128 KiB, and with a fanout
below the number of nodes starts some of them only once others have ended. So the direction is
opposite to ssh: the command itself contains the probe and its orders, one long run pushes the data
of `watch`, and every other request is a run of its own, for all nodes with a request at the same
moment. Requests that this cannot do are refused, with the reason.

The remote shell of pdsh is its own choice, by the user's PDSH_* settings.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.channel import Order, Orders, Part
from hangtop_core.attach.connect.launcher import ByHand, Wave
from hangtop_core.attach.connect.timing import Timing
from hangtop_core.attach.ways.reasons import PDSH, Context, explain_login
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean
from hangtop_probe.wire import fixes, wire
from hangtop_probe.wire.server import UNENDING, Push
from hangtop_probe.wire.tools import dying_with_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.connect.launcher import Ending
    from hangtop_core.attach.ways.ssh import Login

NOTE = (
    "over pdsh: py-spy is not sent along, nothing is traced, and stacks are renewed at most every "
    "5 s"
)
TIMING = Timing(hello=40.0, ping=None, lost=45.0, rest=5.0, login=40.0)
LIFETIME_S = 1800.0
"""Seconds after which a pushing probe ends that is stuck; one without a reader ends with its next
line."""
ANSWER_S = 300.0
"""Seconds after which a run that answers requests ends."""
MAX_LINE = 60_000
"""Maximum bytes of a line, well below pdsh's limit."""
MAX_COMMAND = 129_000
"""Maximum bytes of one argument: Linux allows 131,071 (MAX_ARG_STRLEN), and pdsh adds some."""
EVERYBODY = "*"
WATCH = 1
"""Id of the request that is answered without being sent: the first of any connection."""
NUMBERS = 1 << 20
"""Cut messages that one run may send before its numbers reach those of the next."""
REFUSED = ("strace",)
SILENT = ("watch", "ping", "credit", "cancel")
"""Requests that the pushing run answers unasked, or that have no meaning for it."""

_FROM_PDSH = re.compile(rb"pdsh@[^:\s]*: ([^:\s]+): ")
_UNRESOLVED = re.compile(rb'pdsh@[^:\s]*: gethostbyname\("([^"]+)"\) failed')
_EXIT_CODE = re.compile(rb"exited with exit code (\d{1,3})")
_LABEL = re.compile(r"^(pdsh@[^:\s]*: )?[^:\s]+: ?", re.MULTILINE)
_SSH_OPTIONS = (
    "-oBatchMode=yes -oServerAliveInterval=15 -oServerAliveCountMax=2 -oClearAllForwardings=yes"
)


class PdshChannel:
    """pdsh for some nodes; the parameters of their watching are known beforehand."""

    timing = TIMING

    def __init__(self, nodes: Sequence[str], login: Login, watch: Mapping[str, Any] | None) -> None:
        """``watch`` has the parameters of the request of that name; None means no such request.

        Raises:
            UsageError: a name means something else to pdsh.
        """
        for name in nodes:
            if set(name) & set(":%"):
                raise UsageError(f"--via pdsh: {clean(name, 80)!r} is no name for pdsh")
        self.nodes = frozenset(nodes)
        self.login = login
        self._asked = [{"op": "watch", "id": WATCH, **watch}] if watch is not None else []

    def begin(self, nodes: Sequence[str]) -> PdshRun:
        """Prepare a run that pushes."""
        push = Push({EVERYBODY: self._asked}, LIFETIME_S, 0, MAX_LINE, hello=True)
        return PdshRun(nodes, self.login, push)


class PdshRun:
    """One pdsh that pushes, and the requests beside it."""

    opening = b""

    def __init__(self, nodes: Sequence[str], login: Login, push: Push) -> None:
        self.argv = command(nodes, login, push)
        self._login = login
        self._labels = _labels(nodes)
        self._readers = {node: wire.Reader() for node in nodes}
        """Readers for the nodes without a hello so far."""
        self._hosts: dict[str, str] = {}
        self._written = {node: wire.Reader() for node in nodes}
        self._number = 0

    def output_part(self, line: bytes) -> Part | None:
        """Return the node's part of a line, by label; pdsh omits a domain that all nodes share."""
        label, colon, text = line.partition(b": ")
        node = self._labels.get(label.decode("utf-8", "replace")) if colon else None
        if node is None:
            return None
        if node in self._readers:
            self._meet(node, text)
        return Part(node, text)

    def _meet(self, node: str, line: bytes) -> None:
        """Learn the node's own host name from its hello."""
        try:
            message = self._readers[node].feed(line)
        except wire.WireError:
            return  # the link that gets the same line handles the error
        hello = message.get("hello") if message is not None else None
        if isinstance(hello, dict):
            del self._readers[node]
            self._hosts[node] = str(hello.get("hostname"))

    def error_part(self, line: bytes) -> Part | None:
        """Return the node's part of a complaint by pdsh or a shell; it may say that it is done."""
        match = _UNRESOLVED.match(line) or _FROM_PDSH.match(line)
        label = match[1] if match else line.partition(b": ")[0]
        node = self._labels.get(label.decode("utf-8", "replace"))
        if node is None:
            return None
        if match is None:
            return Part(node, line)
        code = _EXIT_CODE.search(line)
        return Part(node, line, over=True, code=int(code[1]) if code else 255)

    def frame(self, nodes: Sequence[str], data: bytes | None) -> bytes:
        """Return nothing: there is no input to write to."""
        return b""

    def orders(self, writes: Sequence[tuple[str, bytes | None]]) -> Orders:
        """Convert requests into runs of their own, those of all nodes together."""
        asked: dict[str, list[dict[str, Any]]] = {}
        answers = []
        for node, data in writes:
            message = self._written[node].feed(data.rstrip(b"\n")) if data else None
            if message is None or message["op"] in SILENT:
                continue
            if message["op"] in REFUSED:
                answers.append(
                    (node, _error(message["id"], "unsupported", UNENDING, fixes.VIA_SSH))
                )
            else:
                asked.setdefault(node, []).append(message)
        return Orders(self._commands(asked), answers)

    def _commands(self, asked: Mapping[str, list[dict[str, Any]]]) -> list[Order]:
        """Return one run for all nodes whose host names are distinct, and one for each other."""
        hosts = {node: self._hosts[node] for node in asked if node in self._hosts}
        names = list(hosts.values())
        together = {node: name for node, name in hosts.items() if names.count(name) == 1}
        shared = {node: asked[node] for node in together}
        orders = self._orders(shared, together) if shared else []
        alone = [{node: asked[node]} for node in asked if node not in together]
        return orders + [order for request in alone for order in self._orders(request, None)]

    def _orders(
        self, asked: Mapping[str, list[dict[str, Any]]], hosts: Mapping[str, str] | None
    ) -> list[Order]:
        """Return as few runs as fit into one argument each: split by nodes, then by requests."""
        order = self._order(asked, hosts)
        nodes = list(asked)
        messages = asked[nodes[0]]
        if len(order.argv[-1]) <= MAX_COMMAND or len(nodes) == len(messages) == 1:
            return [order]
        half = len(nodes) // 2
        parts = [
            {node: asked[node] for node in half_nodes}
            for half_nodes in (nodes[:half], nodes[half:])
        ]
        if not half:
            parts = [{nodes[0]: [message]} for message in messages]
        return [each for part in parts for each in self._orders(part, hosts)]

    def _order(
        self, asked: Mapping[str, list[dict[str, Any]]], hosts: Mapping[str, str] | None
    ) -> Order:
        self._number += NUMBERS
        requests = {
            hosts[node] if hosts else EVERYBODY: messages for node, messages in asked.items()
        }
        push = Push(requests, ANSWER_S, self._number, MAX_LINE, hello=False)
        ids = {node: [message["id"] for message in messages] for node, messages in asked.items()}
        return Order(command(tuple(asked), self._login, push), ids)

    def refusal(self, request: int, code: int | None, reason: bytes) -> bytes:
        """Return the error of a request that its run may have left unanswered."""
        ending = explain(code, reason.decode("utf-8", "replace"), False, "node", self._login)
        # Fixes from a node are limited to a list; this one is hangtop's.
        text = f"{ending.reason} (fix: {ending.fix_text})" if ending.fix else ending.reason
        return _error(request, "error", text, None)


class PdshLauncher:
    """The probe at the other end of a pdsh that serves other nodes as well."""

    via = "pdsh one-way"
    patience = 0.0

    def __init__(self, node: str, channel: PdshChannel) -> None:
        self._node = node
        self._channel = channel

    @property
    def node(self) -> str:
        """Return the name by which it is reached."""
        return self._node

    @property
    def channel(self) -> PdshChannel:
        """Return the pdsh for all nodes."""
        return self._channel

    @property
    def wave(self) -> Wave:
        """Return no limit: nodes that pdsh holds back start only after others have ended."""
        return Wave("pdsh", len(self._channel.nodes), 0.0)

    @property
    def by_hand(self) -> ByHand:
        """Return the same for a person: pdsh, with the same options."""
        login = self._channel.login
        options = [*login.options(self._node), "--via", "pdsh"]
        return ByHand(_by_pdsh(self._node, login), tuple(options))

    def argv(self) -> list[str]:
        """Return the command for this node alone; the channel's serves all."""
        return self._channel.begin([self._node]).argv

    def opening(self) -> bytes:
        """Return nothing: the boot is in the command."""
        return b""

    def late(self, stderr: str) -> None:
        """Do nothing: an earlier run does not explain the present one."""

    def shell(self) -> None:
        """Return nothing: pdsh gives no input to a shell."""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return why the node's part of the run ended."""
        return explain(code, stderr, was_ready, self._node, self._channel.login)


def command(nodes: Sequence[str], login: Login, push: Push) -> list[str]:
    """Return the pdsh that makes nodes do what ``push`` says."""
    options = f"{os.environ.get('PDSH_SSH_ARGS_APPEND', '')} {_SSH_OPTIONS}".strip()
    # pdsh does not notice when its output has no reader any more, and would outlive hangtop for
    # long. On SIGINT it ends its ssh processes first, with -b at once; on any other signal it
    # leaves them.
    argv = dying_with_us(shutil.which("setpriv"), signal.SIGINT)
    argv += [shutil.which("env") or "/usr/bin/env", f"PDSH_SSH_ARGS_APPEND={options}"]
    argv += [
        "pdsh",
        "-S",
        "-b",
        "-f",
        str(len(nodes)),
        "-t",
        str(max(1, round(login.connect_timeout))),
    ]
    if login.user is not None:
        argv += ["-l", login.user]
    return [*argv, "-w", ",".join(nodes), login.shell_command(bundle.pushed(push, login.keep))]


def explain(code: int | None, stderr: str, was_ready: bool, node: str, login: Login) -> Ending:
    """Return the meaning of the end of one node's part, from the lines about it."""
    text = "\n".join(
        _LABEL.sub("", line) for line in stderr.splitlines() if "exited with exit code" not in line
    )
    by_pdsh = _by_pdsh(node, login)
    trial = (*by_pdsh, *login.trial_words())
    context = Context(node, by_pdsh, login.python, login.sudo, trial)
    return explain_login(code, text, was_ready, context, PDSH)


def _by_pdsh(node: str, login: Login) -> tuple[str, ...]:
    user = ["-l", login.user] if login.user else []
    return ("pdsh", *user, "-w", node)


def _labels(nodes: Sequence[str]) -> dict[str, str]:
    """Return the names that pdsh may print for nodes: with and without a domain, if unique."""
    short: dict[str, list[str]] = {}
    for node in nodes:
        short.setdefault(node.partition(".")[0], []).append(node)
    short_names = {
        name: nodes_of_name[0] for name, nodes_of_name in short.items() if len(nodes_of_name) == 1
    }
    return {**short_names, **{node: node for node in nodes}}


def _error(request: int, kind: str, text: str, fix: str | None) -> bytes:
    (line,) = wire.encode({"id": request, "err": {"kind": kind, "text": text, "fix": fix}})
    return line.rstrip(b"\n")
