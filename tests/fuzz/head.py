"""Decoders of what nodes answer, up to what is shown of it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import inspect

from fuzz.target import expect_harmless, target, text_of
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.bundle import BootMessage, refusal
from hangtop_core.attach.wire import messages, reports
from hangtop_core.attach.wire.lines import LineCutter
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.attach.wire.noise import Noise
from hangtop_core.collect.answers import Answers
from hangtop_core.cores.take import Cost, Taken
from hangtop_core.diagnosis import to_json
from hangtop_core.model.descriptors import Openers
from hangtop_core.model.node import check
from hangtop_core.model.recorder.columns import Unpacker
from hangtop_core.nettest import answers as replies
from hangtop_core.nettest import judge
from hangtop_core.nettest import report as network_report
from hangtop_core.nettest.choose import spots
from hangtop_core.nettest.facts import Facts, JobRun, Member, Names, Outcome, Way
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.report.stacks import each_text
from hangtop_core.state.store import Store
from hangtop_core.tools.strace import Calls, table
from hangtop_probe.recorder import recorderread
from hangtop_probe.recorder.columns import reduce
from hangtop_probe.recorder.recorder import Teller
from support import flight
from support.pieces import EPOCH, child, launcher, piece, process, stacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.snapshot import Snapshot


def lined(*values: Any) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


def told() -> list[bytes]:
    """What one node tells: its processes twice, and one answer of every kind."""
    gpu = {"state": "ok", "bus_id": "0000:17:00.0", "util": 100, "name": "NVIDIA H100",
           "processes": [{"pid": 101, "memory": 1 << 30, "comm": "python"}], "xids": [[79, EPOCH]]}  # fmt: skip
    node = {"load1": 1.5, "kernel_lines": [[EPOCH, "Out of memory: Killed process 9 (python)"]],
            "mounts": [{"point": "/", "fstype": "ext4", "device": "/dev/vda"}], "cpus": 8}  # fmt: skip
    whole = piece(
        0, launcher(99), *(process(100 + n, n) for n in range(3)), child(200, 101), whole=True,
        node=node, nvml={"driver": "550"}, gpus={"0": gpu}, nics={"ib0": {"state": "ACTIVE"}},
    )  # fmt: skip
    later = {"at": EPOCH + 5, "set": {"100": {"state": "D", "denied": ["no", "sudo"]}},
             "gone": {"102": {"exit_code": -9}}}  # fmt: skip
    descriptors = {
        "pid": 100, "start": 1000, "at": EPOCH + 6,
        "descriptors": [{"fd": 3, "kind": "socket", "target": "socket:[7]"}],
    }  # fmt: skip
    row = recorderread.row(reduce(flight.stalled().dump(0)))
    made = {"pid": 101, "start": 1010, "at": EPOCH + 6, "path": "/tmp/x", "trace": row}
    trace = Teller().tell(made)
    log = {"at": EPOCH, "path": "/log/a.out", "pid": 100, "fd": 1, "inode": "8:1", "size": 30,
           "changed": EPOCH, "text": "[rank0]: RuntimeError: NCCL error\n"}  # fmt: skip
    first = {"type": "first", "batch": 3, "at": 5.0, "module": "net.0", "what": "nan"}
    numerics = {"pid": 101, "at": EPOCH, "header": {"rank": 1}, "lines": [first], "path": "/n"}
    ras = {"pid": 100, "at": EPOCH, "form": "text", "address": "127.0.0.1:28028"}
    stack = stacks(100, 6, ("all_reduce", 3), ("main", 9))
    stack["threads"][0]["locals"] = [[{"name": "dst", "value": "1", "argument": True}], []]
    for rows in stack["stacks"].values():
        rows[1] += [[[7, "while queue:  # ends"], [8, "else: if rank == 0:"]], [[9, "with lock:"]]]
    answers = [["watch", whole], ["watch", later], ["stacks", stack], ["fds", descriptors],
               ["recorder", trace], ["log", log], ["numerics", numerics], ["ras", ras]]  # fmt: skip
    return [lined(*answers), lined(*answers[:3]), lined(answers[0], answers[4])]


@target(told)
def node(data: bytes) -> None:
    """Pieces are folded or refused, and what is then shown of the node is harmless."""
    store, wrong = Store(), []
    store.add_node("n1", EPOCH)
    store.connected("n1", EPOCH, False, EPOCH)
    answers = Answers(store)
    unpacker = Unpacker(answers.shared)
    takers: dict[str, Callable[[Any], object]] = {
        "watch": lambda raw: store.fold_watch(
            "n1", messages.decode(raw, messages.WatchPiece), wrong.append
        ),
        "stacks": lambda raw: answers.stacks("n1", messages.decode(raw, messages.StackPiece)),
        "fds": lambda raw: answers.descriptors(
            "n1", messages.decode(raw, messages.DescriptorPiece)
        ),
        "recorder": lambda raw: answers.recorder(
            "n1", messages.decode(raw, messages.RecorderPiece), unpacker
        ),
        "log": lambda raw: answers.log("n1", messages.decode(raw, reports.LogPiece)),
        "numerics": lambda raw: answers.numerics("n1", messages.decode(raw, reports.NumericsPiece)),
        "ras": lambda raw: answers.ras("n1", messages.decode(raw, reports.RasEnd), str(raw)),
    }
    for line in data.split(b"\n")[:40]:
        try:
            kind, raw = json.loads(line)
            take = takers[kind]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        with suppress(BadPieceError):
            take(raw)
        store.publish(EPOCH + 7)
    shown(store.publish(EPOCH + 9))
    for line in Noise().add(len(wrong), *wrong)["noise"]:  # as a link shows them
        expect_harmless(line)


def shown(snapshot: Snapshot) -> None:
    for job in snapshot.jobs:
        diagnosis = diagnose(snapshot, job)
        expect_harmless(diagnosis_text(diagnosis), lines=True)
        expect_harmless(each_text(snapshot, job), lines=True)
        to_json(diagnosis)
    to_json(snapshot)


def first_words() -> list[bytes]:
    hello = {"protocol": 1, "python": "3.11.7", "hostname": "n1", "clock": 5.0, "cpus": 8,
             "capabilities": {"kmsg": {"ok": False, "why": "none", "fix": "dmesg"}}}  # fmt: skip
    boot = [
        {"python": "3.11", "arch": "x86_64", "missing": ["probe", "py-spy"]},
        {"done": {"probe": "cache", "py-spy": None}, "why": "no space"},
        {"error": "python", "text": "too old", "path": "/usr/bin/python3"},
    ]
    return [lined(hello, *boot)]


@target(first_words)
def hello_and_boot(data: bytes) -> None:
    """What a connection begins with fits or is refused."""
    for raw in _values(data):
        with suppress(BadPieceError):
            for text in messages.decode(raw, messages.Hello).facts().values():
                if isinstance(text, str):
                    expect_harmless(text)
        with suppress(BadPieceError):
            ending = refusal(messages.decode(raw, BootMessage))
            expect_harmless(ending.reason)


def _values(data: bytes) -> list[Any]:
    found = []
    for line in data.split(b"\n")[:40]:
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return found


ANSWERS = (
    replies.Look, replies.NamesPiece, replies.OpenedPiece, replies.CalledPiece, replies.ListenEnd,
    replies.RankPiece, replies.RankEnd, messages.Sampled, messages.TraceEnd, messages.TracePiece,
    messages.Problem, messages.DescriptorPiece, Openers, check.Check, Cost, Taken,
)  # fmt: skip


def answers() -> list[bytes]:
    """One of each kind, with every field."""
    return [lined(*(example(inspect.type_info(kind)) for kind in ANSWERS))]


def example(kind: inspect.Type) -> Any:
    """A value that fits a type."""
    match kind:
        case inspect.StructType():
            fields = {one.encode_name: example(one.type) for one in kind.fields}
            return list(fields.values()) if kind.array_like else fields
        case inspect.UnionType():
            return example(kind.types[0])
        case inspect.VarTupleType() | inspect.ListType():
            return [example(kind.item_type)]
        case inspect.TupleType():
            return [example(one) for one in kind.item_types]
        case inspect.DictType():
            return {"1": example(kind.value_type)}
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.StrType():
            return "x"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.NoneType():
            return None
    return True


@target(answers)
def other_answers(data: bytes) -> None:
    """Answers of all other requests fit their types or are refused."""
    for raw in _values(data):
        for kind in ANSWERS:
            with suppress(BadPieceError):
                messages.decode(raw, kind)


@target(lambda: [b"first\nsecond\r\n" + b"x" * 400 + b"\n\n\xff"])
def line_cutter(data: bytes) -> None:
    """Lines are the same however a stream is cut; a long one is cut just above the limit."""
    whole = LineCutter(100).feed(data)
    cutter, step = LineCutter(100), 1 + sum(data[:1]) % 7
    assert whole == [
        line for at in range(0, len(data), step) for line in cutter.feed(data[at : at + step])
    ]
    assert all(len(line) <= 101 for line in whole)


STRACE = b"""[pid  3060] 15:04:58.755684 clock_nanosleep(CLOCK_MONOTONIC, 0,  <unfinished ...>
[pid  3118] 15:04:58.761033 <... restart_syscall resumed>) = -1 ETIMEDOUT (timed out) <0.005346>
[pid  3117] 15:04:58.855018 openat(AT_FDCWD</tmp>, "/data/x y", O_RDONLY) = 8</data/x y> <0.000019>
15:04:58.9 sendto(6<TCP:[127.0.0.1:47662->127.0.0.1:53089]>, "xx"..., 100, 0, NULL, 0) = 1 <0.1>
[pid  3116] 15:04:59.16 poll([{fd=6<TCP:[1.2.3.4:1->1.2.3.4:2]>, events=POLLIN}], 1, -1
[pid  3118] 15:04:59.2 --- SIGUSR1 {si_signo=SIGUSR1} ---
"""


@target(lambda: [STRACE])
def strace_lines(data: bytes) -> None:
    """Lines of strace are folded, and the table of them is harmless."""
    calls = Calls(3060)
    for line in text_of(data).split("\n"):
        calls.add(line[:4096])
    for wanted in ("all", "network", "file"):
        for row in table(calls, wanted, {"a": "b"}, {3060: "python"}):  # type: ignore[arg-type]
            expect_harmless(row)


def tested() -> list[bytes]:
    """What two nodes answer while their network is tested."""
    lines: list[Any] = []
    for number, node in enumerate(("n1", "n2"), 1):
        mine = {"address": f"10.0.0.{number}", "length": 24}
        links = [
            {"name": "lo", "kind": "loopback", "addresses": [{"address": "::1", "length": 128}]},
            {"name": "eth0", "kind": "ethernet", "up": True, "mtu": 1500, "addresses": [mine]},
        ]
        look = {"hostname": node, "links": links, "default": "eth0", "ephemeral": [32768, 60999]}
        names = {"names": {"n1": ["10.0.0.1"], "n2": "not known"}, "reverse": {"10.0.0.2": "n2"},
                 "sources": {"10.0.0.2": "10.0.0.1"}}  # fmt: skip
        opened = {"opened": [{"asked": 29500, "why": "in use", "owner": "python (pid 7)"}]}
        torch = {"python": "3.11.7", "path": "/usr/bin/python3", "torch": "2.13", "gpus": ["H200"]}
        say = {"end": "all_reduce", "took": 0.1, "error": "Connection refused"}
        lines += [["look", node, look], ["names", node, names], ["opened", node, opened],
                  ["called", node, {"calls": [{"id": number, "how": "late", "took": 0.1}]}],
                  ["torch", node, torch], ["say", node, say], ["rates", node, [[1, 10**9]]],
                  ["numerics", node, {"exp": ["0x1.8p+0", "0x1.0p-3"]}],
                  ["end", node, {"code": 1, "lines": ["NCCL WARN Bootstrap: no socket"]}]]  # fmt: skip
    return [lined(*lines), lined(*lines[:5]), lined(*lines[9:])]


KINDS: dict[str, Any] = {
    "look": replies.Look, "names": replies.NamesPiece, "opened": replies.OpenedPiece,
    "called": replies.CalledPiece, "torch": replies.Torch, "say": replies.Say, "rates": replies.Rates,
    "numerics": replies.Numerics, "end": replies.RankEnd,
}  # fmt: skip


@target(tested)
def network_test(data: bytes) -> None:
    """Whatever nodes answer to a test of the network, the report of it is harmless."""
    told: dict[str, dict[str, Any]] = {node: {} for node in ("n1", "n2")}
    for raw in _values(data):
        with suppress(BadPieceError, ValueError, TypeError, KeyError):
            kind, node, value = raw
            told[node][kind] = messages.decode(value, KINDS[kind])
    facts = Facts(nodes=tuple(told), took_s=1.0)
    facts.looked = {node: one["look"] for node, one in told.items() if "look" in one}
    facts.spots = spots(facts.looked, None)
    outcomes = []
    for node, one in told.items():
        if "names" in one:
            answer = one["names"]
            facts.names[node] = Names(answer.names, answer.reverse, answer.sources)
        if "opened" in one and node in facts.spots:  # others are not asked for ports
            facts.opened[node] = one["opened"].opened
        if "torch" in one:
            facts.torch[node] = one["torch"]
        calls = one["called"].calls if "called" in one else ()
        for call in calls if len(facts.spots) == len(told) else ():
            facts.ways.append(Way(node, "n2", "chosen", 29500, call.how, call.took))
        if "end" in one:
            facts.lines[node] = one["end"].lines
        say = one.get("say", replies.Say())
        outcomes.append(
            Outcome(
                Member(node),
                step=say.end,
                error=say.error,
                wrong=say.wrong,
                rates=one.get("rates", ()),
                numerics=one.get("numerics", {}),
            )
        )
    facts.jobs.append(JobRun("gloo", tuple(outcomes)))
    found = judge.findings(facts)
    status = judge.status(facts, found, True)
    expect_harmless(network_report.text(facts, found, status, 80), lines=True)
    if facts.spots:
        expect_harmless(network_report.mpirun_line(facts, None))
    to_json(network_report.document(facts, found, status))
