"""Which error was first. The recordings are of real gloo jobs of 4 ranks under torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.wording import event
from support.logs import judged, recording
from support.verdicts import blamed

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

NCCL = "[rank{rank}]:[E1206 18:44:{second:02}.7 ProcessGroupNCCL.cpp:1] "
WATCHDOG = (
    NCCL + "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
    "OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600061 milliseconds "
    "before timing out.\n"
)
STATUS = (
    NCCL + "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work "
    "sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {done}\n"
)


def verdict(*texts: str, paths: tuple[str, ...] = ()) -> Verdict:
    return conclude(judged(*texts, paths=paths))[0]


def test_the_exception_is_first_and_not_what_torchrun_calls_the_root_cause() -> None:
    text = recording("tee_raise")
    assert "rank      : 0" in text.partition("Root Cause")[2]
    found = judged(text)
    assert found.first is not None
    assert (found.first.ranks, found.first.record.text) == ((1,), "KeyError: 'labels'")
    lost = [one for one in found.follows if one.record.code == "traceback" and one.ranks]
    assert [(one.ranks, one.record.part) for one in lost] == [((0, 2, 3), "cascade")]
    one = conclude(found)[0]
    assert (one.cause, blamed(one), one.victims) == ("rank-exited", [1], (0, 2, 3))


def test_sizes_that_gloo_aborts_on_are_of_the_rank_that_torchrun_says_has_aborted() -> None:
    one = verdict(recording("plain_sizes"))
    assert (one.cause, blamed(one), one.victims) == ("mismatched-size", [2], (0, 1, 3))
    assert "got 786432 bytes where 32 were expected" in one.summary


def test_without_prefixes_of_torchrun_the_same_is_told() -> None:
    one = verdict(recording("plain_raise"))
    assert (one.cause, blamed(one)) == ("rank-exited", [1])


@pytest.mark.parametrize("prefix", ["", "[default1]:"])
def test_an_exception_that_follows_from_one_with_a_long_message_is_no_other_error(
    prefix: str,
) -> None:
    raised = 'Traceback (most recent call last):\n  File "/a/{0}.py", line 7, in {0}\n    x()\n'
    text = "step 3\n" + raised.format("load") + "hub.NotFound: 404 Client Error.\n\n"
    text += "Repository Not Found for url: https://hub/api.\nPlease look at its name.\n\n"
    text += "The above exception was the direct cause of the following exception:\n\n"
    text += raised.format("main") + "OSError: model is no local folder\nIs it a private one?\n"
    found = judged("".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert found.first is not None
    assert not found.others
    one = found.first.record
    assert (one.text, one.fields["first"], one.order) == (
        "OSError: model is no local folder",
        "hub.NotFound: 404 Client Error.",
        2,
    )
    assert [call.name for call in one.calls] == ["load", "main"]


def test_a_killed_rank_is_known_by_what_torchrun_says() -> None:
    one = verdict(recording("tee_kill"))
    assert (one.cause, blamed(one)) == ("rank-crashed", [1])
    assert "SIGKILL" in one.summary


def test_a_crashed_rank_too() -> None:
    one = verdict(recording("plain_segv"))
    assert (one.cause, blamed(one)) == ("rank-crashed", [1])
    assert "SIGSEGV" in one.summary


def test_who_said_nothing_while_the_others_waited_in_vain_is_to_blame() -> None:
    one = verdict(recording("tee_sleep"))
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [1], (0, 2, 3))


def test_a_dead_rank_is_told_from_its_silence_where_no_launcher_speaks() -> None:
    text = recording("tee_kill")
    one = verdict(text[: text.index("W1121")])
    assert (one.cause, blamed(one)) == ("rank-crashed", [1, 3])
    assert one.confidence < 0.7


def test_where_all_waited_in_vain_it_is_told_what_does_not_explain_it() -> None:
    text = recording("tee_sleep")
    silent = judged(text)
    assert silent.first is not None
    wait = "".join(f"[default1]:{line}\n" for line in silent.first.record.lines)
    one = verdict(text + wait)
    assert (one.cause, blamed(one)) == ("unknown", [])
    said = [fact.text for fact in one.evidence]
    assert "none is silent: all of ranks 0-3 waited in vain" in said
    assert "no rank has printed an error of its own before" in said
    assert any(text.startswith("all of them waited at one place, job.py:") for text in said)


def test_a_launcher_that_was_told_to_end_has_steps_of_its_own() -> None:
    line = (
        "W1121 11:17:50.1 7 torch/distributed/elastic/agent/server/api.py:753] Received 15 death "
    )
    one = verdict(line + "signal, shutting down workers\n")
    assert (one.cause, blamed(one)) == ("rank-exited", [])
    assert one.next_steps[0].startswith("See who ended it")


def test_the_numbers_of_watchdogs_are_a_poor_mans_recorder() -> None:
    text = "".join(
        WATCHDOG.format(rank=r, second=12, seq=17)
        + STATUS.format(rank=r, second=12, seq=17, enqueued=19, done=16)
        for r in (0, 1, 3)
    ) + STATUS.format(rank=2, second=13, seq=16, enqueued=16, done=16)
    one = verdict(text)
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [2], (0, 1, 3))
    assert "rank 2 did not issue allreduce #17" in one.summary


def test_torch_before_2_5_tells_only_what_each_waited_for() -> None:
    text = "".join(WATCHDOG.format(rank=r, second=12, seq=96120) for r in range(3))
    one = verdict(text + WATCHDOG.format(rank=3, second=12, seq=64088))
    assert blamed(one) == [3]


def test_where_all_had_joined_nobody_is_to_blame() -> None:
    text = "".join(
        WATCHDOG.format(rank=r, second=12, seq=17)
        + STATUS.format(rank=r, second=12, seq=17, enqueued=17, done=16)
        for r in range(4)
    )
    one = verdict(text)
    assert (one.cause, blamed(one)) == ("all-joined-transport", [])


def test_who_broke_off_a_monitored_barrier_tells_who_did_not_come_to_it() -> None:
    where = 'Traceback (most recent call last):\n  File "train.py", line 56, in step\n'
    lost = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
    lost += "send/recv from rank 0. Please check rank 0 logs for faulty rank."
    missed = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 8000 ms"
    closed = "[pair.cc:553] Connection closed by peer [127.0.0.1]:30426. This is typically caused"
    text = ""
    for rank, said, why in ((1, lost.format(1), closed), (0, missed, "Timed out waiting 7999ms")):
        text += f"[E1123 01:20:03.08 ProcessGroupGloo.cpp:67] {said}\n{where}"
        text += f"RuntimeError: {said}\n Original exception: \n{why}\n"
        text = "".join(
            line if line.startswith("[rank") else f"[rank{rank}]: {line}"
            for line in text.splitlines(keepends=True)
        )
    one = verdict(text)
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [2], (0, 1))
    assert "rank 2 did not come where ranks 0-1 waited, in a monitored barrier" in one.summary


def test_an_error_well_after_a_timeout_only_follows() -> None:
    text = WATCHDOG.format(rank=0, second=12, seq=17)
    text += "[rank1]:[E1206 18:44:40.1 x.cpp:1] CUDA error: unspecified launch failure\n"
    found = judged(text)
    assert found.first is not None
    assert found.first.record.code == "T1"


def test_aborts_of_the_watchdog_are_no_cause() -> None:
    text = "".join(
        WATCHDOG.format(rank=r, second=12, seq=17)
        + STATUS.format(rank=r, second=12, seq=17, enqueued=19, done=16)
        for r in (0, 1, 3)
    ) + STATUS.format(rank=2, second=13, seq=16, enqueued=16, done=16)
    text += (
        "E1206 18:45:20.1 1 api.py:1] failed (exitcode: -6) local_rank: 0 (pid: 7) of binary: p\n"
    )
    assert blamed(verdict(text)) == [2]


def test_error_12_names_its_peer() -> None:
    text = "n1:7:8 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<39412> "
    text += "with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_3\n"
    one = verdict("[rank3]: x\n" + f"[default3]:{text}")
    assert one.cause == "nccl-ib-error"
    assert "10.0.0.2<39412>" in one.summary


def test_the_wrong_interface_counts_where_there_are_several_nodes() -> None:
    boot = "{host}:{pid}:8 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
    refused = "n2:9:8 NCCL WARN Net : Connect to 172.17.0.1<43211> failed : Connection refused\n"
    two = boot.format(host="n1", pid=7) + boot.format(host="n2", pid=9)
    causes = [one.cause for one in conclude(judged(two + refused))]
    assert "wrong-interface" in causes
    one_node = boot.format(host="n1", pid=7) + refused
    assert "wrong-interface" not in [one.cause for one in conclude(judged(one_node))]


def test_ranks_that_never_joined_a_communicator_are_named() -> None:
    line = "n1:{pid}:8 [0] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 "
    line += "busId 9b000 commId 0x5ae7 - Init START\n"
    text = "".join(line.format(pid=100 + rank, rank=rank) for rank in (0, 1, 3))
    one = verdict(text)
    assert (one.cause, blamed(one)) == ("nccl-init-incomplete", [2])


def test_files_of_single_ranks_are_put_together() -> None:
    traceback = "Traceback (most recent call last):\n" + '  File "a.py", line 3, in f\n'
    folder = "logs/none_x1/attempt_0/{}/stderr.log"
    texts = [traceback + "ValueError: bad\n"]
    texts += [traceback + "RuntimeError: Connection closed by peer [10.0.0.1]:7\n"] * 3
    paths = tuple(folder.format(rank) for rank in (2, 0, 1, 3))
    one = verdict(*texts, paths=paths)
    assert (blamed(one), one.victims) == ([2], (0, 1, 3))


def test_where_a_rank_was_is_not_told_as_where_another_has_ended() -> None:
    traceback = "Traceback (most recent call last):\n" + '  File "a.py", line 3, in f\n'
    text = f"{traceback}RuntimeError: Connection closed by peer [10.0.0.1]:7\n"
    first = judged(text, paths=("rank_0.log",)).first
    assert first is not None
    assert event(first).endswith("was closed: that rank has ended; seen at a.py:3 (f)")


def test_earlier_attempts_of_torchrun_do_not_count() -> None:
    traceback = "Traceback (most recent call last):\n" + '  File "a.py", line 3, in f\n'
    folder = "logs/none_x1/attempt_{}/{}/stderr.log"
    texts = (traceback + "ValueError: old\n", traceback + "KeyError: new\n")
    found = judged(*texts, paths=(folder.format(0, 0), folder.format(1, 1)))
    assert found.first is not None
    assert (found.first.record.text, found.earlier) == ("KeyError: new", 1)


def test_logs_without_errors_have_no_first() -> None:
    found = judged("step 1\nstep 2\n")
    assert found.first is None
    assert conclude(found) == ()


def test_who_left_by_itself_without_a_word_is_to_blame_by_what_torchrun_says() -> None:
    closed = "[rank{}]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:41\n"
    head = "[rank{}]: Traceback (most recent call last):\n"
    report = """\
E1122 00:06:24.908000 7289 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: 3) local_rank: 1 (pid: 7357) of binary: /usr/bin/python
job.py FAILED
Failures:
[1]:
  time      : 2026-11-22_00:06:24
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 7356)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7356
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_00:06:24
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 7357)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
    one = verdict((head + closed).format(0, 0) + (head + closed).format(2, 2) + report)
    assert (one.cause, blamed(one)) == ("rank-exited", [1])
    assert "exit status 3" in one.summary
    assert "ranks 0,2 lost the connection to it" in one.summary


@pytest.mark.parametrize(
    "heading",
    ["ERROR:train:step failed\n", "ERROR:train:step failed\nin epoch 3\nwith batch 7\n"],
)
@pytest.mark.parametrize("again", [False, True])
def test_that_an_error_was_logged_is_not_told_beside_its_own_traceback(
    heading: str, again: bool
) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "gen.py", line 10, in <module>\n    step()\n'
        '  File "gen.py", line 7, in step\n    raise ValueError("bad")\nValueError: bad\n'
    )
    far = "ERROR:train:disk is slow\n" + "step\n" * 30
    found = judged(far + heading + raised * (1 + again))
    assert found.first is not None
    assert found.first.record.text == "ValueError: bad"
    assert [fold.record.text for fold in found.notes] == ["ERROR:train:disk is slow"]


def test_ranks_that_exchange_what_does_not_fit_are_known_by_what_nccl_has_warned_of() -> None:
    """Rank 2 reduced more elements; rank 3, next to it, is the one that prints so."""
    found = judged(recording("nccl_sizes"))
    one = conclude(found)[0]
    assert (one.cause, one.confidence, blamed(one)) == ("mismatched-size", 0.8, [])
    assert one.victims == (0, 1, 2, 3)
    assert one.summary == (
        "rank 3 (node1): NCCL got 1048576 bytes from 127.0.0.1<50336> where it expected 65536: "
        "ranks have issued different operations or sizes, or differ in NCCL_PROTO, NCCL_ALGO and "
        "the like"
    )
    assert any("hangtop flight" in step for step in one.next_steps)
    assert any("compare NCCL_* of all ranks" in step for step in one.next_steps)
    assert "message truncated : receiving 1048576 bytes" in one.evidence[0].text
    follows = {fold.record.code: fold.ranks for fold in found.follows}
    assert follows == {"T2": (3,), "T5": (0, 1, 2)}


def test_an_exception_tells_what_nccl_has_warned_of_and_not_only_its_first_line() -> None:
    text = recording("nccl_verb")
    one = verdict(text)
    assert (one.cause, one.confidence, blamed(one)) == ("mismatched-size", 0.8, [])
    raised = "".join(line for line in text.splitlines(True) if ":[rank3]: " in line)
    one = verdict(raised)
    assert (one.cause, one.confidence, blamed(one)) == ("mismatched-size", 0.8, [])
    assert one.summary.startswith("rank 3 (node1): NCCL got 1048576 bytes from 127.0.0.1<57756>")
    assert one.summary.endswith("; seen at train.py:72 (train_step)")


def test_a_rank_that_left_without_a_word_is_the_one_that_has_printed_nothing() -> None:
    found = judged(recording("nccl_leave"))
    assert found.unheard == (2,)
    one = conclude(found)[0]
    assert (one.cause, one.confidence, blamed(one)) == ("rank-exited", 0.6, [2])
    assert one.victims == (0, 1, 3)
    assert one.summary == (
        "NCCL lost a rank, or the network, as ranks 1,3 say: the connection to localhost<33818> "
        "was closed: it has ended, or ended the connection. It is none of ranks 0-1,3, who "
        "follow; rank 2 printed nothing, and most likely left"
    )
    assert {fold.record.code: fold.record.part for fold in found.follows} == {
        "T2": "cascade",
        "T5": "cascade",
    }


def test_where_no_number_lacks_nobody_is_blamed_for_what_nccl_has_lost() -> None:
    text = recording("nccl_leave").replace("[rank3]", "[rank2]").replace("Rank 3]", "Rank 2]")
    one = verdict(text)
    assert (one.cause, one.confidence, blamed(one)) == ("unknown", 0.3, [])
    assert one.victims == (0, 1, 2)
    assert one.summary.endswith("; which one, these logs do not tell")


@pytest.mark.parametrize(
    ("ranks", "unheard"),
    [((1, 2, 3), (0,)), ((2, 3), ()), ((8, 9, 11), (10,)), ((1, 90), ()), ((3,), ())],
)
def test_numbers_that_lack_are_those_below_the_highest_of_a_file(
    ranks: tuple[int, ...], unheard: tuple[int, ...]
) -> None:
    assert judged("".join(f"[rank{rank}]: step\n" for rank in ranks)).unheard == unheard


def test_ranks_whose_own_files_are_not_here_may_have_printed_something() -> None:
    lost = (
        "[rank{}]: RuntimeError: NCCL error: remote process exited or there was a network error\n"
    )
    paths = ("rank_0.log", "rank_1.log", "rank_3.log")
    found = judged(*(lost.format(rank) for rank in (0, 1, 3)), paths=paths)
    assert found.unheard == ()
    assert blamed(conclude(found)[0]) == []


def test_a_wait_until_the_timeout_stays_one_also_where_the_watchdog_says_more() -> None:
    one = verdict(recording("nccl_timeout"))
    assert (one.cause, one.confidence, blamed(one)) == ("missing-collective", 0.85, [2])
    assert "rank 2 did not issue a collective #41" in one.summary


def test_whose_exception_nccl_tells_of_on_the_others_is_still_told() -> None:
    found = judged(recording("nccl_skip"))
    one = conclude(found)[0]
    assert (one.cause, blamed(one), one.victims) == ("rank-exited", [2], (0, 1, 3))
    assert one.summary.endswith("at train.py:99 (skip); ranks 0-1,3 lost the connection to it")
    assert found.survived == ()


def test_who_has_begun_as_much_as_the_others_has_come() -> None:
    """Rank 0 was told by others, and has not given up itself."""
    told_so = NCCL + "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
    told_so += "collective timeout from  rank 1 and we will try our best to dump the debug info. "
    told_so += "Last enqueued NCCL work: 17, last completed NCCL work: 16.This is most likely\n"
    text = "".join(
        WATCHDOG.format(rank=r, second=12, seq=17)
        + STATUS.format(rank=r, second=12, seq=17, enqueued=17, done=16)
        for r in (1, 2, 3)
    )
    one = verdict(text + told_so.format(rank=0, second=13))
    assert (one.cause, blamed(one), one.victims) == ("all-joined-transport", [], (0, 1, 2, 3))
