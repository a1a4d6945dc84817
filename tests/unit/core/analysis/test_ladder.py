"""Ladders of nodes of which everything is known: what each fact comes to."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.ladder import node as rungs_of_a_node
from hangtop_core.analysis.ladder.climb import TO_THE_PROBE, climb
from hangtop_core.analysis.ladder.fold import fold
from hangtop_core.attach.wire.messages import BadPieceError, decode
from hangtop_core.model.node.check import (
    Cache,
    Check,
    Clock,
    Examined,
    Nvml,
    Processes,
    PySpyTrial,
    RankCheck,
    Rights,
    Source,
    Tool,
    Trial,
    Way,
)
from hangtop_core.model.snapshot import Fact, Failure, Node, RecorderWay

if TYPE_CHECKING:
    from hangtop_core.analysis.ladder.rung import Rung

FACTS = {
    "py-spy": Fact(True, version="0.4.3", path="/opt/py-spy"),
    "ptrace": Fact(True),
    "strace": Fact(True, path="/usr/bin/strace"),
}
GOOD = Check(
    1.0,
    source=Source("cache", "cache"),
    cache=Cache("/home/a/.cache/hangtop", bytes=1 << 20),
    rights=Rights(1000, "alice"),
    trial=Trial(0, PySpyTrial(0.01, 3)),
    strace=Tool(True, "/usr/bin/strace", "6.1"),
    gdb=Tool(True, "/usr/bin/gdb", "13.1"),
    processes=Processes(100, 40),
)


def examined(name: str = "n1", *, facts: dict[str, Fact] | None = None, **check: Any) -> Examined:
    """A node on which everything works, but for what is given."""
    node = Node(
        name,
        "ready",
        python="3.11.7",
        user="alice",
        capabilities=FACTS if facts is None else facts,
    )
    way = Way(name, 22, addresses=("10.0.0.1",), took=0.001)
    clock = check.pop("clock", Clock(0.01, 0.005))
    return Examined(node, way=way, check=msgspec.structs.replace(GOOD, **check), clock=clock)


def failed(state: Any, reason: str, way: Way | None = None, python: str | None = None) -> Examined:
    """A node without an answer."""
    node = Node("n1", state, reason=f"{reason}; connecting again in 3 s", fix="do", python=python)
    return Examined(node, way=way)


def rung(name: str, **check: Any) -> Rung:
    return climb(examined(**check)).rung(name)


def test_where_all_is_well_nothing_is_missing() -> None:
    ladder = climb(examined())
    assert {one.state for one in ladder.rungs} == {"ok", "not-applicable"}
    assert [one.name for one in ladder.rungs] == [*TO_THE_PROBE, *rungs_of_a_node.NAMES]
    assert ladder.answered
    assert not ladder.failing


HERE = Way("n1", 22, addresses=("10.0.0.1",), took=0.001)
REFUSING = Way("n1", 2222, addresses=("10.0.0.1",), refused="Connection refused")
SILENT = Way("n1", 22, addresses=("10.0.0.1",), refused="no answer in 2 s")
NAMELESS = Way("n1", 22, unresolved="Name or service not known")
BEHIND = Way("n1", 22, through="gate")


@pytest.mark.parametrize(
    ("seen", "fails", "fix"),
    [
        (failed("unreachable", "no name", NAMELESS), "resolve", "getent hosts n1"),
        (failed("unreachable", "refused", REFUSING), "reach", "sshd runs on n1, on port 2222"),
        (failed("unreachable", "no route", SILENT), "reach", "ping n1"),
        (failed("unreachable", "frozen", HERE), "login", "do"),
        (failed("unreachable", "gate closed", BEHIND), "login", "do"),
        (failed("denied", "no key", HERE), "login", "do"),
        (failed("no-python", "there is none", HERE), "python", "do"),
        (failed("unreachable", "damaged", HERE, "3.11.7"), "probe", "do"),
        (failed("incompatible", "protocol 2", HERE, "3.11.7"), "probe", "do"),
        (failed("lost", "no answer", HERE, "3.11.7"), "probe", "do"),
        (failed("connecting", "", HERE), "login", "do"),
    ],
    ids=lambda value: value.node.state if isinstance(value, Examined) else None,
)
def test_the_rung_that_fails_and_nothing_above_it(seen: Examined, fails: str, fix: str) -> None:
    ladder = climb(seen)
    assert [one.name for one in ladder.failing] == [fails]
    assert fix in (ladder.rung(fails).fix or "")
    assert "connecting again" not in ladder.rung(fails).text
    names = [one.name for one in ladder.rungs]
    above = ladder.rungs[names.index(fails) + 1 :]
    assert {one.state for one in above} == {"not-reached"}
    assert not ladder.answered


def test_what_ssh_gets_through_is_no_fault_of_the_way() -> None:
    """A name only ssh knows, or a network only ssh is in, as with a VPN or a wrapper."""
    for way in (NAMELESS, REFUSING):
        ladder = climb(msgspec.structs.replace(examined(), way=way))
        assert not ladder.failing
        assert "only for ssh" in ladder.rung("resolve").text + ladder.rung("reach").text


def test_a_probe_that_does_not_answer_is_a_rung() -> None:
    seen = msgspec.structs.replace(examined(), check=None, failed="check: no answer in time")
    ladder = climb(seen)
    assert [one.name for one in ladder.failing] == ["probe"]
    assert ladder.rung("gdb").state == "not-reached"


DENIED = PySpyTrial(failure=Failure("denied", "kernel.yama.ptrace_scope is 1", "sysctl"))
YAMA = Fact(False, why="kernel.yama.ptrace_scope is 1 and this is alice", fix="sudo hangtop")


@pytest.mark.parametrize(
    ("check", "state", "text", "fix"),
    [
        (
            {"trial": Trial(errno.EPERM, DENIED), "facts": {**FACTS, "ptrace": YAMA}},
            "missing",
            "kernel.yama.ptrace_scope is 1 and this is alice",
            "hangtop --sudo",
        ),
        (
            {"trial": Trial(errno.EPERM, DENIED), "rights": Rights(1000, "alice", seccomp=2)},
            "missing",
            "a seccomp filter refuses it",
            "--cap-add=SYS_PTRACE",
        ),
        (
            {
                "trial": Trial(errno.EPERM, PySpyTrial(0.1, 3)),
                "rights": Rights(1000, "alice", seccomp=2),
            },
            "warning",
            "stacks of Python can be read",
            "--cap-add=SYS_PTRACE",
        ),
        ({"trial": Trial(errno.EPERM, DENIED)}, "missing", "not permitted", "hangtop --sudo"),
        ({"trial": Trial(why="no process")}, "missing", "no process", None),
        ({"trial": Trial(None, PySpyTrial(0.1, 3))}, "warning", "could not be tried", None),
        (
            {"ranks": (RankCheck(1, 0, 1000, "alice", why="it is not dumpable", fix="sudo x"),)},
            "missing",
            "1 of 1 rank of alice: it is not dumpable",
            "sudo x",
        ),
        (
            {"ranks": (RankCheck(1, 0, 7, "bob", why="it belongs to bob", fix="sudo hangtop"),)},
            "warning",
            "1 rank of bob: it belongs to bob",
            "hangtop --sudo",
        ),
        ({"ranks": (RankCheck(1, 0, 1000, "alice", True),)}, "ok", "processes of alice", None),
    ],
    ids=["yama", "seccomp", "readable", "refused", "no-trial", "untried", "own", "other", "ok"],
)
def test_ptrace_says_who_refuses_it(
    check: dict[str, Any], state: str, text: str, fix: str | None
) -> None:
    one = rung("ptrace", **check)
    assert one.state == state
    assert text in one.text
    assert (fix in (one.fix or "")) if fix else one.fix is None


def test_on_this_machine_one_becomes_root_by_hand() -> None:
    seen = examined(trial=Trial(errno.EPERM, DENIED))
    here = msgspec.structs.replace(seen, here=True, way=None)
    assert "hangtop --sudo" in (climb(seen).rung("ptrace").fix or "")
    assert "sudo hangtop" in (climb(here).rung("ptrace").fix or "")


GDB = "Couldn't write extended state status: Bad address."


@pytest.mark.parametrize(
    ("code", "args", "refused", "state", "text", "fix"),
    [
        ("works", {}, 0, "ok", "13.1", None),
        ("harmful", {"what": "was killed by SIGSEGV", "said": GDB}, 0, "warning",
         f"13.1: gdb on this node breaks what it calls into: a process of hangtop's own was killed "
         f"by SIGSEGV, and gdb said: {GDB} (only needed for", "a newer gdb on its node (14 or"),
        ("no-calls", {"said": GDB}, 0, "warning", f"one of hangtop's own: {GDB}", "hangtop run --"),
        ("untried", {"why": "no answer"}, 0, "warning", "(no answer)", "try again; or start jobs"),
        ("no-attach", {"said": "ptrace: No."}, 0, "warning", "own: ptrace: No.", "hangtop doctor"),
        ("no-attach", {"said": "ptrace: No."}, 1, "not-reached", "13.1 is there; see ptrace", None),
    ],
)  # fmt: skip
def test_a_gdb_that_would_harm_ranks_is_warned_of(
    code: str, args: dict[str, str], refused: int, state: str, text: str, fix: str | None
) -> None:
    one = rung("gdb", gdb_call=RecorderWay("inject", code, args), trial=Trial(refused))
    assert (one.state, one.fails) == (state, False)
    assert text in one.text
    assert (fix in (one.fix or "")) if fix else one.fix is None


def test_py_spy_is_not_blamed_for_what_ptrace_refuses() -> None:
    assert rung("py-spy", trial=Trial(errno.EPERM, DENIED)).state == "not-reached"
    wrong = PySpyTrial(failure=Failure("unsupported", "Python 3.99", "pip install -U py-spy"))
    one = rung("py-spy", trial=Trial(0, wrong))
    assert (one.state, one.fix) == ("missing", "pip install -U py-spy")
    other = {**FACTS, "py-spy": Fact(False, why="this node is aarch64", fix="pip install py-spy")}
    assert "aarch64" in rung("py-spy", facts=other, trial=Trial(0, wrong)).text


@pytest.mark.parametrize(
    ("check", "name", "state", "text"),
    [
        ({"strace": Tool(why="strace is not on PATH")}, "strace", "missing", "only needed for"),
        ({"gdb": Tool(why="it ended with 127")}, "gdb", "missing", "127"),
        ({"nvml": Nvml()}, "nvml", "not-applicable", "no NVIDIA driver"),
        ({"nvml": Nvml(error="nvmlInit_v2: (9)")}, "nvml", "not-applicable", "no NVIDIA driver"),
        ({"nvml": Nvml(True, missing="no file")}, "nvml", "warning", "its library is not there"),
        ({"nvml": Nvml(True, error="GPU is lost (15)")}, "nvml", "warning", "GPU is lost"),
        ({"nvml": Nvml(True, driver="575.1", gpus=8)}, "nvml", "ok", "driver 575.1, 8 GPUs"),
        ({"nvml": Nvml(True, driver="575.1", gpus=0)}, "nvml", "warning", "0 GPUs"),
        ({"nvml": Nvml(True, None, "GPU 1: lost", "5.1", 8)}, "nvml", "warning", "GPU 1: lost"),
        ({"processes": Processes(9, 0, "2")}, "processes", "warning", "hidepid=2"),
        ({"processes": Processes(9, 5, "off")}, "processes", "ok", "all"),
        ({"processes": Processes(9, contained=True)}, "processes", "ok", "container"),
        ({"processes": Processes(9, sees_init=False)}, "processes", "warning", "process 1"),
        ({"processes": Processes(0)}, "processes", "missing", "/proc shows none"),
        ({"clock": Clock(5.0, 0.1)}, "clock", "warning", "more than 1 s ahead of"),
        ({"clock": Clock(-5.0, 0.1)}, "clock", "warning", "behind"),
        ({"clock": Clock(5.0, 4.5)}, "clock", "ok", "within 1 s"),
        ({"clock": Clock(0, 0, True)}, "clock", "ok", "the same clock"),
        ({"clock": None}, "clock", "not-reached", "in time"),
        ({"source": Source("shared", "shared")}, "cache", "not-applicable", "not needed"),
        ({"source": Source("installed")}, "cache", "not-applicable", "not needed"),
    ],
)
def test_what_hangtop_can_do_without_fails_nothing(
    check: dict[str, Any], name: str, state: str, text: str
) -> None:
    one = rung(name, **check)
    assert (one.state, text in one.text) == (state, True), one
    assert one.fails == (name == "processes" and state == "missing")


def test_hidden_processes_are_not_hidden_from_root() -> None:
    seen = {"processes": Processes(9, 0, "2"), "rights": Rights(0, "root", capable=True)}
    assert rung("processes", **seen).state == "ok"


ON = RecorderWay("recorder", "on")
SERVER = (ON, RecorderWay("pipe", "gloo"), RecorderWay("server", "there", {"path": "/tmp/s"}))
PIPE = (ON, RecorderWay("pipe", "there"), RecorderWay("server", "no-thread"))
OLD_NAME = {"torch": "2.9.0", "setting": "TORCH_NCCL_TRACE_BUFFER_SIZE"}
NONE = (ON, RecorderWay("pipe", "old-name", OLD_NAME), RecorderWay("server", "no-thread"))
OFF = (RecorderWay("recorder", "off-default", OLD_NAME), RecorderWay("pipe", "off"))


@pytest.mark.parametrize(
    ("ways", "state", "text"),
    [
        ((SERVER, SERVER), "ok", "readable by a worker server"),
        ((SERVER, PIPE), "ok", "readable by a worker server, a pipe"),
        (((ON, RecorderWay("file", "there")),), "ok", "a dump that was written"),
        ((PIPE, NONE), "warning", "1 of 2 ranks cannot be asked"),
        ((NONE,), "warning", "torch 2.9.0 makes it only where TORCH_NCCL_TRACE_BUFFER_SIZE is set"),
        ((OFF, PIPE), "missing", "1 of 2 ranks: the recorder is off, as it is by default"),
        (((),), "not-reached", "cannot be looked into"),
        ((), "not-applicable", "no rank runs there"),
    ],
)
def test_how_recorders_can_be_read(
    ways: tuple[tuple[RecorderWay, ...], ...], state: str, text: str
) -> None:
    ranks = tuple(RankCheck(9, 0, 1000, "alice", True, recorder=one) for one in ways)
    one = rung("flight recorder", ranks=ranks)
    assert (one.state, text in one.text) == (state, True), one


def test_nodes_that_are_equal_but_for_their_names_are_one_group() -> None:
    key = "compare and accept it: ssh {0} -o StrictHostKeyChecking=ask true"
    seen = [examined("gpu1"), examined("gpu2")]
    seen[1] = msgspec.structs.replace(seen[1], clock=Clock(0.4, 0.1))
    for name in ("gpu3", "gpu4"):
        node = Node(name, "denied", reason=f"{name} is new", fix=key.format(name))
        seen.append(Examined(node, way=HERE))
    good, bad = fold(map(climb, seen))
    assert (good.nodes, bad.nodes) == (("gpu1", "gpu2"), ("gpu3", "gpu4"))
    login = next(one for one in bad.rungs if one.name == "login")
    assert (login.text, login.fix) == ("NODE is new", key.format("NODE"))
    clock = next(one for one in good.rungs if one.name == "clock")
    assert clock.detail is None  # it differs
    assert next(one for one in good.rungs if one.name == "resolve").detail == "10.0.0.1"
    assert bad.differences(good)[0].name == "login"
    (alone,) = fold([climb(seen[2])])
    assert next(one for one in alone.rungs if one.name == "login").fix == key.format("gpu3")


def test_a_node_whose_name_is_part_of_another_word_changes_no_text() -> None:
    seen = [
        Examined(Node(name, "denied", reason="python is at a1", fix="x"), way=HERE)
        for name in ("a", "p")
    ]
    (group,) = fold(map(climb, seen))
    assert next(one for one in group.rungs if one.name == "login").text == "python is at a1"


def test_what_a_node_says_is_cleaned_and_bounded() -> None:
    evil = "\x1b]0;owned\x07red\x1b[31m"
    seen = examined(
        strace=Tool(True, evil, evil),
        cache=Cache(evil, why=evil),
        source=Source("memory", "memory"),
        ranks=(RankCheck(1, 0, 1000, evil, why=evil, fix=evil),),
        rights=Rights(1000, evil),
        nvml=Nvml(True, driver=evil, gpus=1),
    )
    told = {one.name: f"{one.text}{one.detail}{one.fix}" for one in climb(seen).rungs}
    assert [name for name, text in told.items() if "red" in text] == [
        "cache", "ptrace", "strace", "nvml",
    ]  # fmt: skip
    assert "\x1b" not in "".join(told.values())
    with pytest.raises(BadPieceError):
        decode({"at": 1.0, "ranks": [{"pid": 1}] * 2000}, Check)
    with pytest.raises(BadPieceError):
        decode({"at": float("nan")}, Check)


RANKS = tuple(RankCheck(pid=10 + rank, rank=rank, attach=True, core_size=None) for rank in (0, 1))
LIMITED = tuple(msgspec.structs.replace(one, core_size=0) for one in RANKS)
CUT = tuple(msgspec.structs.replace(one, core_size=4096) for one in RANKS)


@pytest.mark.parametrize(
    ("pattern", "ranks", "state", "text"),
    [
        ("core.%p", RANKS, "ok", "into the working directory"),
        ("core.%p", LIMITED, "warning", "2 of 2 ranks would leave no core: ulimit -c is 0"),
        ("core.%p", CUT, "warning", "would be cut"),
        ("core", RANKS, "warning", "overwrite"),
        ("", RANKS, "warning", "core_pattern is empty"),
        ("|/usr/lib/systemd/systemd-coredump %P", LIMITED, "ok", "systemd-coredump"),
        ("|/usr/lib/systemd/systemd-coredump %P %c", LIMITED, "warning", "ulimit -c is 0"),
        (None, RANKS, "not-applicable", "not known"),
    ],
)
def test_whether_ranks_leave_cores(
    pattern: str | None, ranks: tuple[RankCheck, ...], state: str, text: str
) -> None:
    facts = dict(FACTS) if pattern is None else {**FACTS, "core": Fact(True, path=pattern)}
    one = rung("cores", ranks=ranks, facts=facts)
    assert one.state == state
    assert text in f"{one.text} {one.detail}"
