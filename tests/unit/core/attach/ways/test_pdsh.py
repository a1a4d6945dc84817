"""pdsh as a way to nodes: what it is told, whose lines are whose, and what is asked beside it."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.ways.pdsh import MAX_COMMAND, PdshChannel, PdshLauncher, PdshRun, command
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.errors import UsageError
from hangtop_probe.wire import wire
from hangtop_probe.wire.server import Push

WATCH = {"interval": 2.0, "all_users": False, "pids": None}


def channel(*nodes: str, login: Login | None = None) -> PdshChannel:
    return PdshChannel(nodes, login or Login(), WATCH)


def hello(name: str) -> bytes:
    return wire.encode({"id": 0, "hello": {"hostname": name, "pad": "x" * 2000}})[0].rstrip(b"\n")


def met(hosts: dict[str, str]) -> PdshRun:
    """A run whose nodes have said hello, by node and what it calls itself."""
    run = channel(*hosts).begin(tuple(hosts))
    for node, host in hosts.items():
        part = run.output_part(node.encode() + b": " + hello(host))
        assert part is not None
        assert part.node == node
    return run


def request(op: str, number: int, **params: Any) -> bytes:
    return wire.encode({"op": op, "id": number, **params})[0]


def pushed(argv: list[str]) -> dict[str, Any]:
    """What the command tells its nodes."""
    block = bundle.unpushed(argv[-1].rpartition(" ")[2])
    length, _, rest = block.partition(b"\n")
    code = zlib.decompress(rest[: int(length)]).decode()
    (line,) = [line for line in code.splitlines() if line.startswith("sys.exit(main(json.loads(")]
    literal = line[len("sys.exit(main(json.loads(") : -len("), r))")]
    found: dict[str, Any] = json.loads(eval(literal))["push"]
    return found


def test_the_command_says_all_there_is_to_do() -> None:
    argv = channel("n1", "n2", login=Login(user="me", sudo=True)).begin(["n1", "n2"]).argv
    words = argv[argv.index("pdsh") :]
    assert words[:-1] == ["pdsh", "-S", "-b", "-f", "2", "-t", "10", "-l", "me", "-w", "n1,n2"]
    assert words[-1].startswith('exec sudo -n python3 -I -S -u -c "import')
    code, _, word = words[-1].rpartition(" ")
    assert not set(code) & set("$!`\\*?{}<>|&\n")
    assert (word[0], word[-1]) == ("'", "'")
    assert not set(word[1:-1]) & set("$!`\\%^'\"\n")  # what single quotes do not keep everywhere
    push = pushed(argv)
    assert push["requests"] == {"*": [{"op": "watch", "id": 1, **WATCH}]}
    assert push["hello"]
    assert push["max_line"] < 64 * 1024


def test_there_is_room_for_what_the_probe_may_still_become() -> None:
    assert len(channel("n1").begin(["n1"]).argv[-1]) < 0.9 * MAX_COMMAND
    for pack in bundle._PACKS[:-1]:
        asked = Push({"n1": [{"op": op, "id": 1} for op in pack]}, 1.0, 0, 60_000, hello=True)
        assert len(command(["n1"], Login(), asked)[-1]) < 0.9 * MAX_COMMAND, pack


def test_requests_of_one_node_that_need_more_than_fits_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = met({"n1": "one", "n2": "two"})
    asked = ["descriptors", "recorder", "check"]
    writes = [("n1", request(op, 2 + at, pids=[1])) for at, op in enumerate(asked)]
    together = len(run.orders(writes).commands[0].argv[-1])
    alone = max(len(run.orders([write]).commands[0].argv[-1]) for write in writes)
    # Halfway, since a line more or less can make a packed text shorter or longer by hundreds.
    limit = (alone + together) // 2
    assert limit - alone > 1000
    monkeypatch.setitem(PdshRun.orders.__globals__, "MAX_COMMAND", limit)
    run = met({"n1": "one", "n2": "two"})
    writes.append(("n2", request("stacks", 2, pids=[1])))
    orders = run.orders(writes).commands
    assert [order.requests for order in orders] == [{"n1": [n]} for n in (2, 3, 4)] + [{"n2": [2]}]
    numbers = [pushed(order.argv)["number"] for order in orders]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("name", ["fe80::1", "ssh:n1", "n%h"])
def test_names_that_mean_something_else_to_pdsh_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name for pdsh"):
        channel("n1", name)


def test_labels_may_lack_the_domain() -> None:
    run = channel("n1.a.org", "n2.a.org", "x.b", "x.c").begin(
        ["n1.a.org", "n2.a.org", "x.b", "x.c"]
    )
    for line, node in [
        (b"n1: text", "n1.a.org"),
        (b"n2.a.org: a: b", "n2.a.org"),
        (b"x.c: text", "x.c"),
    ]:
        part = run.output_part(line)
        assert part is not None
        assert part.node == node
        assert part.line == line.partition(b": ")[2]
    for line in (b"x: text", b"n3: text", b"banner", b"", b"\xff: x"):
        assert run.output_part(line) is None


def test_whom_pdsh_complains_about() -> None:
    run = channel("n1", "n2").begin(["n1", "n2"])
    text = run.error_part(b"n1: bash: python3: not found")
    assert text is not None
    assert (text.node, text.over) == ("n1", False)
    for line, node, code in [
        (b"pdsh@head: n1: ssh exited with exit code 127", "n1", 127),
        (b"pdsh@head: n2: connect: Connection refused", "n2", 255),
        (b'pdsh@head: gethostbyname("n2") failed', "n2", 255),
    ]:
        part = run.error_part(line)
        assert part is not None
        assert (part.node, part.over, part.code) == (node, True, code)
    assert run.error_part(b"pdsh@head: something general") is None


ENDINGS = [
    (255, "n1: ssh: connect to host n1 port 22: Connection refused\n"
     "pdsh@h: n1: ssh exited with exit code 255", "unreachable", "connection refused", True),
    (255, "n1: Warning: Permanently added 'n1' (ED25519) to the list of known hosts.\n"
     "n1: me@n1: Permission denied (publickey).\npdsh@h: n1: ssh exited with exit code 255",
     "denied", "login refused", False),
    (127, "n1: bash: line 1: exec: python3: not found\n"
     "pdsh@h: n1: ssh exited with exit code 127", "no-python", "no python3", False),
    (255, "pdsh@h: n1: rcmd: socket: Permission denied", "denied", "by rsh", False),
    (255, 'pdsh@h: gethostbyname("n1") failed', "unreachable", "cannot be resolved", False),
    (1, "n1: it was like this", "unreachable", "status 1: it was like this", True),
]  # fmt: skip


@pytest.mark.parametrize(("code", "stderr", "state", "reason", "retry"), ENDINGS)
def test_endings(code: int, stderr: str, state: str, reason: str, retry: bool) -> None:
    launcher = PdshLauncher("n1", channel("n1"))
    ending = launcher.explain(code, stderr, False)
    assert (ending.state, ending.retry) == (state, retry)
    assert reason in ending.reason
    assert ending.fix
    assert launcher.by_hand.shell == ("pdsh", "-w", "n1")


def test_requests_of_one_moment_share_a_run() -> None:
    run = met({"n1": "one", "n2": "two", "n3": "three"})
    orders = run.orders(
        [
            ("n1", request("stacks", 2, pids=[1])),
            ("n2", request("stacks", 2, pids=[5])),
            ("n1", request("descriptors", 3, pids=[1])),
        ]
    )
    (order,) = orders.commands
    assert not orders.answers
    assert order.argv[-2] == "n1,n2"
    assert order.requests == {"n1": [2, 3], "n2": [2]}
    push = pushed(order.argv)
    assert {host: [one["op"] for one in some] for host, some in push["requests"].items()} == {
        "one": ["stacks", "descriptors"],
        "two": ["stacks"],
    }
    assert not push["hello"]
    (later,) = run.orders([("n1", request("stacks", 4, pids=[1]))]).commands
    assert pushed(later.argv)["number"] > push["number"] > 1000


def test_nodes_that_call_themselves_the_same_are_asked_one_by_one() -> None:
    run = met({"n1": "localhost", "n2": "localhost", "n3": "three"})
    writes = [(node, request("stacks", 2, pids=[1])) for node in ("n1", "n2", "n3")]
    orders = run.orders(writes).commands
    assert sorted(tuple(order.requests) for order in orders) == [("n1",), ("n2",), ("n3",)]
    assert {tuple(pushed(order.argv)["requests"]) for order in orders} == {("*",), ("three",)}


def test_what_is_too_long_for_one_argument_is_split() -> None:
    names = {f"n{number}": f"host{number}" for number in range(40)}
    run = met(names)
    pids = list(range(100_000, 104_000, 3))
    writes = []
    for index, node in enumerate(names):
        shifted = [pid * 7919 % 4_000_000 + index for pid in pids]
        writes += [(node, line) for line in wire.encode({"op": "stacks", "id": 2, "pids": shifted})]
    orders = run.orders(writes).commands
    assert len(orders) > 1
    assert all(len(order.argv[-1]) <= MAX_COMMAND for order in orders)
    assert sorted(node for order in orders for node in order.requests) == sorted(names)


def test_what_cannot_be_ended_is_refused_and_the_rest_is_left_out() -> None:
    run = met({"n1": "one"})
    writes: list[tuple[str, bytes | None]] = [
        ("n1", request("strace", 7, pid=1, seconds=10)),
        *(("n1", request(op, 1)) for op in ("watch", "ping", "credit", "cancel")),
        ("n1", None),
    ]
    orders = run.orders(writes)
    assert not orders.commands
    ((node, line),) = orders.answers
    message = wire.Reader().feed(line)
    assert message is not None
    assert (node, message["id"], message["err"]["kind"]) == ("n1", 7, "unsupported")
    assert message["err"]["fix"] == "via-ssh"
    assert run.frame(["n1"], b"x") == b""


def test_a_request_that_got_no_answer_says_why() -> None:
    run = met({"n1": "one"})
    message = wire.Reader().feed(run.refusal(3, 255, b"n1: ssh: connect: Connection refused\n"))
    assert message is not None
    assert message["id"] == 3
    assert "connection refused" in message["err"]["text"]


def test_a_hello_that_cannot_be_read_does_no_harm() -> None:
    run = channel("n1").begin(["n1"])
    part = run.output_part(b"n1: " + wire.MAGIC + b'{"z": 5}')
    assert part is not None
    (order,) = run.orders([("n1", request("stacks", 2, pids=[1]))]).commands
    assert list(pushed(order.argv)["requests"]) == ["*"]
