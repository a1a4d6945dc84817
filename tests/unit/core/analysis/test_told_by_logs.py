"""Why a rank has left, or lost what it waits for, where the job's own log tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, DescriptorTable, Holder, Socket
from hangtop_core.model.output import Output
from hangtop_core.model.snapshot import Node
from support import build, situations
from support.build import World
from support.logs import parsed
from support.situations import FUTEX, POLL, SLEEP, c10d
from support.verdicts import first

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.file_log import FileLog

SHM = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_{}_17_5>: "
    "No space left on device (28)\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n'
ABORT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
    "op.nbytes. 786432 vs 32. Received data size doesn't match expected size.\n"
)


def run(world: World, text: str, world_size: int | None = None) -> Diagnosis:
    """Diagnose ranks that all print to one file."""
    log: FileLog = parsed(text)
    pids = tuple(rank.process.pid for rank in world.ranks)
    output = Output("n1", "1:1", "/job/log.txt", pids=pids, log=log)
    snapshot = world.snapshot(world_size=world_size or len(world.ranks))
    snapshot = msgspec.structs.replace(snapshot, outputs=(output,))
    return diagnose(snapshot, snapshot.job(None))


def test_a_child_that_gets_no_shared_memory_is_why_its_rank_waits_for_a_queue() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(situations.QUEUE, FUTEX)
    child = world.process(8534, POLL, role="subprocess", label="producer")
    world.give_children(rank, [(child, None)])
    found = run(world, TRACEBACK + SHM.format(8534))
    assert first(found) == ("shm-too-small", [2])
    assert "rank 2 (n1, pid 4020), by its child (pid 8534): raised" in found.verdicts[0].summary
    assert "; the rank waits for a queue at train.py:" in found.verdicts[0].summary
    assert first(run(world, TRACEBACK + SHM.format(8535)))[0] == "queue-wait"  # nobody knows it


def test_what_a_rank_printed_before_it_left_is_told_before_that_it_left() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    for rank in (0, 2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        world.add(c10d("all_reduce"), FUTEX, rank=rank, process={"env": env})
    text = "".join(f"[rank1]: {line}\n" for line in (TRACEBACK + SHM.format(9)).splitlines())
    found = run(world, text, world_size=3)
    assert first(found) == ("shm-too-small", [1])
    assert "rank-exited" not in [one.cause for one in found.verdicts]


WENT_ON = (
    "ERROR:trainer:evaluation failed\n"
    'Traceback (most recent call last):\n  File "/job/train.py", line 13, in predict\n'
    "    raise ValueError(label)\nValueError: label 17\nstep 10\nstep 11\nstep 12\nstep 13\n"
)


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("", "a rank, which one is not told, printed ValueError: label 17"),
        ("[rank0]: ", "rank 0 printed ValueError: label 17"),
        ("[rank2]: ", "printed ValueError: label 17"),
    ],
)
def test_an_error_that_somebody_went_on_after_is_told_of_who_is_elsewhere(
    prefix: str, said: str
) -> None:
    world = World()
    for _ in range(2):
        world.add(c10d("all_gather"), FUTEX)
    world.add(situations.BACKWARD, FUTEX)
    text = "".join(f"{prefix}{line}\n" for line in WENT_ON.splitlines())
    found = run(world, text)
    assert first(found) == ("mismatched-collective", [2])
    logged = [one for one in found.verdicts[0].evidence if one.source == "log"]
    assert any(said in one.text and "train.py:13 (predict)" in one.text for one in logged)


def test_who_prints_may_be_named_in_what_is_printed() -> None:
    world = World()
    for _ in range(2):
        world.add(c10d("all_gather"), FUTEX)
    world.add(situations.BACKWARD, FUTEX)
    text = "WARNING rank 2: dropping a batch: CUDA out of memory. Tried to allocate 2 GiB\nstep 9\n"
    logged = [one.text for one in run(world, text).verdicts[0].evidence if one.source == "log"]
    assert any(one.startswith("rank 2, as it says, printed WARNING rank 2:") for one in logged)
    assert not any("which one is not told" in one for one in logged)


def test_who_has_the_port_that_rank_0_could_not_have_is_told() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    told = Socket("tcp", "LISTEN", "0.0.0.0:29500", "0.0.0.0:0")
    for pid, stranger in ((4010, False), (77, True)):
        world.ranks.clear()
        port = Descriptor(
            -1, "socket", "socket:[7]", socket=told, holders=(Holder(pid, "old", "S", "listens"),)
        )
        for rank in (1, 2):
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
            env |= {"MASTER_PORT": "29500", "MASTER_ADDR": "n1"}
            table = DescriptorTable(build.NOW, store_port=port)
            world.add(
                situations.INIT,
                situations.SLEEP,
                rank=rank,
                process={"env": env},
                descriptors=table,
            )
        line = "[rank0]: torch.distributed.DistNetworkError: port: 29500, address already in use\n"
        verdict = run(world, line, world_size=3).verdicts[0]
        assert verdict.cause == "store-port-taken"
        assert ("pid 77 (old) on n1 has it" in verdict.summary) == stranger
        steps = list(verdict.next_steps)
        assert ("ps -o pid,user,etime,args -p 77" in steps) == stranger
        assert any("sport = :29500" in step for step in steps)


@pytest.mark.parametrize("stack", [situations.INIT, c10d("all_reduce")])
@pytest.mark.parametrize(("port", "named"), [("29500", True), ("6006", False)])
def test_that_rank_0_is_not_there_is_told_by_the_port_that_it_could_not_have(
    stack: situations.Stack, port: str, *, named: bool
) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    for rank in (1, 2):
        env = {"RANK": str(rank), "MASTER_PORT": "29500", "MASTER_ADDR": "n1"}
        world.add(stack, situations.SLEEP, rank=rank, process={"env": env})
    line = f"torch.distributed.DistNetworkError: port: {port}, address already in use\n"
    found = run(world, line, world_size=3)
    assert ("most likely that was rank 0" in found.verdicts[0].summary) == named, (
        "whatever a store of old has let them through to"
    )
    if named:
        assert first(found) == ("store-port-taken", [0])
        assert "rank-never-joined" not in [one.cause for one in found.verdicts]


def test_a_rank_0_of_another_run_has_the_port_that_this_one_could_not_have() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    for rank, stack in (
        (0, situations.user("report", 5)),
        (1, situations.INIT),
        (2, situations.INIT),
    ):
        env = {"RANK": str(rank), "MASTER_PORT": "29500", "MASTER_ADDR": "n1"}
        env["WORLD_SIZE"] = "3" if rank else "1"
        world.add(stack, situations.SLEEP, rank=rank, process={"env": env})
    line = "torch.distributed.DistNetworkError: port: 29500, address already in use\n"
    found = run(world, line, world_size=3)
    assert first(found) == ("store-port-taken", [0])
    assert "most likely is of another run, and has the port" in found.verdicts[0].summary


def test_the_rank_that_aborted_is_the_one_whose_sizes_did_not_fit() -> None:
    world = World()
    world.waiters(2)
    process = {"exit_code": -6, "gone_at": build.HUNG_SINCE}
    world.add(c10d("all_reduce"), FUTEX, process=process, state="exited")
    assert first(run(world, ABORT)) == ("mismatched-size", [2])


@pytest.mark.parametrize(
    ("codes", "text", "blamed"),
    [
        # Others lost the connection to it, or were told to end.
        ((1, None, 1, -15), "", [1]),
        # Its own error says why it left; or it may be any of two.
        ((1, None, 1, -15), "[rank1]: KeyError: 'a'\n", []),
        ((1, None, None, -15), "", []),
    ],
)
def test_who_aborted_is_known_where_nothing_else_tells_why_it_left(
    codes: tuple[int | None, ...], text: str, blamed: list[int]
) -> None:
    world = World()
    for code in codes:
        process = {"exit_code": code, "gone_at": build.HUNG_SINCE}
        world.add(c10d("all_reduce"), FUTEX, process=process, state="exited")
    head = "[rank1]: Traceback (most recent call last):\n" if text else ""
    line = '[rank1]:   File "train.py", line 9, in <module>\n' if text else ""
    (found,) = [
        one for one in run(world, ABORT + head + line + text).verdicts
        if one.cause == "mismatched-size"
    ] or [None]  # fmt: skip
    assert ([c.rank for c in found.culprits] if found is not None else []) == blamed
    if blamed:
        assert first(run(world, ABORT)) == ("mismatched-size", blamed)


TRUNCATED = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:612] [Rank {0}] Collective WorkNCCL(SeqNum=4, "
    "OpType=ALLREDUCE) raised the following async exception: NCCL error: invalid usage\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    "NET/Socket : peer 127.0.0.1<7> message truncated : receiving 512 bytes instead of 64\n"
)


@pytest.mark.parametrize("code", [None, 1, -6])
def test_who_got_from_nccl_what_does_not_fit_is_not_blamed_for_it(code: int | None) -> None:
    """Neither where it lives nor where it has left, or its watchdog has aborted it."""
    world = World()
    world.waiters(3)
    process = {"exit_code": code, "gone_at": build.HUNG_SINCE} if code is not None else {}
    state = "exited" if code is not None else "live"
    world.add(c10d("all_reduce"), FUTEX, process=process, state=state)
    found = run(world, TRUNCATED.format(3))
    assert first(found) == ("mismatched-size", [])
    assert found.verdicts[0].summary.startswith("rank 3")
    assert "NCCL got 512 bytes from 127.0.0.1<7> where it expected 64" in found.verdicts[0].summary


RESTARTED = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "train.py", line 9, in <module>\n[rank2]: RuntimeError: lost\n'
    "[{}] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) "
    "local_rank: 2 (pid: 24304) of binary: /opt/python3\n"
)


@pytest.mark.parametrize(("before_s", "told"), [(2.0, False), (-2.0, True)])
def test_what_ranks_printed_before_torchrun_started_them_again_is_of_no_account(
    before_s: float, told: bool
) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    world.waiters(2, situations.INIT)
    world.add(situations.user("load", 9), SLEEP)
    at = time.gmtime(build.NOW - 600.0 - before_s)
    found = run(world, RESTARTED.format(time.strftime("%Y-%m-%d %H:%M:%S,000", at)))
    assert first(found) == ("rank-never-joined", [2])
    facts = [fact.text for fact in found.verdicts[0].evidence]
    assert any("it printed RuntimeError: lost" in text for text in facts) == told


GAVE_UP = (
    'Traceback (most recent call last):\n  File "train.py", line 22, in step\n'
    "    dist.all_reduce(x)\n"
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv "
    "operation to complete\n"
)
CLOSED = (
    'Traceback (most recent call last):\n  File "train.py", line 22, in step\n'
    "    dist.all_reduce(x)\n"
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:41\n"
)
CAUGHT = (
    "ERROR:root:skipping\nTraceback (most recent call last):\n"
    '  File "train.py", line 17, in step\nValueError: bad batch\n'
)
LEFT_3 = (
    "E1122 00:06:24.908000 7289 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
    "(exitcode: 3) local_rank: 1 (pid: 4010) of binary: /usr/bin/python\n"
)


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def ended(
    text: str,
    ends: tuple[float, ...] = (5.0, 5.0, 5.0),
    alive: bool = False,
    code: int | None = None,
) -> Diagnosis:
    """A job of three: rank 1 slept while the others waited; then ranks left, so long ago."""
    world = World()
    for rank, ago in enumerate(ends):
        state = "sleeping" if alive and rank == 1 else "exited"
        gone: dict[str, object] = {} if state == "sleeping" else {"gone_at": build.NOW - ago}
        if gone and rank == 1:
            gone["exit_code"] = code
        stack = situations.user("load", 8) if rank == 1 else c10d("all_reduce")
        facts = SLEEP if rank == 1 else FUTEX
        added = world.add(stack, facts, state=state, process=gone)
        if gone and added.sample is not None:
            last = msgspec.structs.replace(added.sample, at=build.NOW - ago - 2.0)
            world.ranks[rank] = msgspec.structs.replace(added, sample=last)
    return run(world, text)


@pytest.mark.parametrize("alive", [False, True])
def test_who_waited_until_a_timeout_and_left_is_a_victim(alive: bool) -> None:
    text = of_rank(0, GAVE_UP) + of_rank(2, GAVE_UP)
    for logs in (text, CAUGHT + text):
        found = ended(logs, alive=alive)
        assert [v.cause for v in found.verdicts] == ["missing-collective"]
        assert first(found) == ("missing-collective", [1])
        assert found.verdicts[0].victims == (0, 2)
        assert "load" in found.verdicts[0].summary
        assert found.verdicts[0].confidence >= (0.59 if alive else 0.92)


def test_a_rank_that_had_left_long_before_is_why_others_waited_in_vain() -> None:
    found = ended(of_rank(0, GAVE_UP) + of_rank(2, GAVE_UP), (5.0, 60.0, 5.0))
    assert first(found) == ("rank-exited", [1])
    assert found.verdicts[0].victims == (0, 2)


def test_who_was_told_to_end_when_others_gave_up_has_not_left_before() -> None:
    text = of_rank(0, GAVE_UP) + of_rank(2, GAVE_UP)
    for code, cause in ((-15, "missing-collective"), (3, "rank-exited")):
        found = ended(text, (5.0, 60.0, 5.0), code=code)
        assert first(found) == (cause, [1])


def test_where_all_waited_in_vain_and_left_nobody_is_blamed() -> None:
    found = ended("".join(of_rank(rank, GAVE_UP) for rank in range(3)))
    assert [first(found)] == [("unknown", [])]
    assert found.verdicts[0].victims == (0, 1, 2)


@pytest.mark.parametrize("said", ["", LEFT_3, of_rank(1, TRACEBACK + "ValueError: bad batch\n")])
def test_who_lost_the_connection_and_left_is_a_victim(said: str) -> None:
    found = ended(of_rank(0, CLOSED) + of_rank(2, CLOSED) + said)
    assert first(found) == ("rank-exited", [1])
    assert found.verdicts[0].victims == (0, 2)


BAD_LABEL = (
    "Traceback (most recent call last):\n"
    '  File "/job/classify.py", line 70, in <module>\n    main()\n'
    '  File "/job/classify.py", line 31, in check\n    raise ValueError(line)\n'
    "ValueError: line 150 has label 1000\n"
)
OTHER = TRACEBACK + "KeyError: 'a'\n"
CHILD = (
    "{}Process tokenizer:\n{}Traceback (most recent call last):\n"
    '{}  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap\n'
    '{}    self.run()\n{}  File "/job/tokens.py", line 37, in fill\n'
    "{}    text.decode()\n{}UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff\n"
)
GUESSED = "(most likely of ValueError: line 150 has label 1000 at classify.py:31 (check): "


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (BAD_LABEL, 1, True),
        (OTHER + "more\n" + BAD_LABEL, 1, True),
        (BAD_LABEL + "more\n" + OTHER, 1, False),
        ("ERROR:root:skipped\n" + BAD_LABEL, 1, False),
        (of_rank(0, BAD_LABEL), 1, False),
        (BAD_LABEL + of_rank(2, OTHER), 1, False),
        (CHILD.replace("{}", ""), 1, False),
        (BAD_LABEL + CHILD.replace("{}", ""), 1, True),
        (BAD_LABEL, 0, False),
    ],
)
def test_an_error_that_no_line_tells_the_rank_of_is_that_of_the_one_that_failed(
    text: str, code: int, *, told: bool
) -> None:
    world = World()
    world.waiters(2, situations.INIT)
    gone = {"exit_code": code, "state": "Z"}
    world.add(None, ("Z", None, None, None, None), process=gone, moved_at=build.NOW - 12.0)
    found = run(world, text)
    assert first(found) == ("rank-exited", [2])
    assert (GUESSED in found.verdicts[0].summary) == told, found.verdicts[0].summary
    if code:
        assert "exited with status 1, 12 s ago" in found.verdicts[0].summary
    # Of two it is not known which one has printed it.
    world.add(None, ("Z", None, None, None, None), process=gone, moved_at=build.NOW - 12.0)
    assert all("most likely of" not in one.summary for one in run(world, text).verdicts)


@pytest.mark.parametrize(("number", "cause"), [(1, "rank-exited"), (0, "rank-oom-killed")])
def test_who_has_printed_why_it_left_is_not_who_was_killed_on_its_node_just_then(
    number: int, cause: str
) -> None:
    world = World()
    counts = {"oom_kills": 3, "oom_killed_at": build.HUNG_SINCE + 4}
    world.nodes["n1"] = Node("n1", "ready", **counts)
    world.waiters(1)
    world.add(None, None, state="exited", process={"state": "X", "gone_at": build.HUNG_SINCE})
    found = run(world, of_rank(number, OTHER))
    assert first(found) == (cause, [1])


def test_ranks_that_multiprocessing_has_started_die_as_children_do() -> None:
    below = situations.frame("BaseProcess._bootstrap", "py:multiprocessing/process.py", 314)
    world = World()
    for _ in range(2):
        world.add((*situations.INIT, below), FUTEX)
    gone = {"exit_code": 1, "state": "Z"}
    world.add(None, ("Z", None, None, None, None), process=gone)
    verdict = run(world, CHILD.replace("{}", "")).verdicts[0]
    assert "most likely of UnicodeDecodeError" in verdict.summary
    # Where one of them has lost a child, it may be that.
    child = world.process(8534, POLL, role="subprocess", state="Z", exit_code=1)
    world.give_children(world.ranks[0], [(child, None)])
    verdict = run(world, CHILD.replace("{}", "")).verdicts[0]
    assert verdict.cause == "rank-exited"
    assert "most likely of" not in verdict.summary


def test_the_error_of_a_rank_that_was_never_seen_is_told_where_it_alone_is_not_there() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready")
    for rank in (0, 2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        world.add(c10d("all_reduce"), FUTEX, rank=rank, process={"env": env})
    found = run(world, BAD_LABEL, world_size=3)
    assert first(found) == ("rank-exited", [1])
    assert f"no such process on n1 {GUESSED}" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("prefix", "zombie", "said"),
    [
        ("[default2]:", True, "its child process 'tokenizer' died of UnicodeDecodeError: "),
        ("", True, "a child process 'tokenizer' died of UnicodeDecodeError: "),
        ("", False, "a child process 'tokenizer' died of UnicodeDecodeError: "),
        ("[default1]:", True, ""),
        ("", None, ""),
    ],
)
def test_of_what_a_child_died_that_filled_a_queue_is_told(
    prefix: str, *, zombie: bool | None, said: str
) -> None:
    world = World()
    world.waiters(2)
    queue = (
        situations.frame("Queue.get", "py:multiprocessing/queues.py", 103),
        *situations.user("next", 55),
    )
    rank = world.add(queue, situations.PIPE_READ)
    facts = ("Z", None, None, None, None) if zombie else POLL
    gone = {"state": "Z", "exit_code": 1, "cmdline": ()} if zombie else {}
    child = world.process(8534, facts, role="subprocess", label="subprocess python", **gone)
    if zombie is not False:
        world.give_children(rank, [(child, None)])
    verdict = run(world, CHILD.replace("{}", prefix)).verdicts[0]
    assert verdict.cause == "queue-wait"
    assert "tokenizer" in verdict.summary if said else "tokenizer" not in verdict.summary
    assert said in verdict.summary
    if zombie:
        assert "most likely its multiprocessing child (pid 8534) filled it" in verdict.summary
    if said:
        assert "at tokens.py:37 (fill)" in verdict.summary
        others = ("no thread is at work", "no other Python thread", "most likely its multiproc")
        places = [verdict.summary.find(one) for one in others]
        assert verdict.summary.index(said) < max(places), "what died comes first"
