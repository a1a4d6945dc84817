"""Ranks that finished while others still waited for them: no crash, and no death without a word.

The lines are those of a real gloo job in which rank 0 issues one all_reduce more.
"""

from __future__ import annotations

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from support.logs import judged, parsed
from support.verdicts import blamed

CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
    "by peer [127.0.0.1]:32687. This is typically caused by a remote worker crashing."
)
ENDED = "W1128 06:44:05.101000 4 torch/api.py:1010] Sending process 7 closing signal SIGTERM\n"


def waits(label: str, rank: int) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 26, in <module>',
        "    f = dist.all_reduce(a)",
        CLOSED,
    )
    return "".join(f"{label}[rank{rank}]: {line}\n" for line in lines)


def report(*failed: tuple[int, int], host: str = "gpu01") -> str:
    """What torchrun says of local and global ranks that failed."""
    entries = "".join(
        f"[{number}]:\n  time      : 2026-11-28_06:44:05\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {local})\n  exitcode  : 1 (pid: {100 + rank}) \n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs\n"
        for number, (local, rank) in enumerate(failed)
    )
    line = "=" * 60
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{line}\ntrain.py FAILED\n{'-' * 60}\nRoot Cause (first observed failure):\n"
        f"{entries}{line}\n"
    )


@pytest.mark.parametrize("label", ["[default{}]:", "[gpu01:{}]:", "[trainer{0}/{0}]:"])
def test_a_rank_that_torchrun_does_not_report_has_finished(label: str) -> None:
    text = f"{label.format(1)}exiting\n{waits(label.format(0), 0)}{report((0, 0))}"
    (one,) = conclude(judged(text))
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [1], (0,))
    assert one.summary.startswith("rank 1 finished without an error, and rank 0 still waited at")
    assert not any("dmesg" in step for step in one.next_steps)


def test_where_most_have_finished_the_one_that_waited_did_one_more() -> None:
    text = "".join(f"[default{rank}]:exiting\n" for rank in (1, 2, 3))
    (one,) = conclude(judged(text + waits("[default0]:", 0) + report((0, 0))))
    assert (one.cause, blamed(one)) == ("rank-conditional-collective", [0])


def test_of_ranks_that_torchrun_has_ended_none_is_said_to_have_finished() -> None:
    text = f"[default1]:step 4\n{waits('[default0]:', 0)}{ENDED}{report((0, 0))}"
    assert judged(text).finished == frozenset()
    (one,) = conclude(judged(text))
    assert "finished" not in one.summary


def test_the_report_of_one_node_tells_nothing_of_another() -> None:
    here = "[gpu01:1]:[rank1]: exiting\n" + waits("[gpu01:0]:", 0) + report((0, 0))
    away = "[gpu02:0]:[rank2]: step 4\n[gpu02:1]:[rank3]: step 4\n"
    assert judged(here, away).finished == {1}
    assert judged(here, away + report((1, 3), host="gpu02.cluster")).finished == {1, 2}


def test_what_ranks_left_at_their_ends_tells_it_too() -> None:
    texts = waits("", 0), "local_rank=1 exiting\n"
    files = [parsed(text, f"rank{n}-gpu01.log", n) for n, text in enumerate(texts)]
    assert conclude(judge(files))[0].cause == "rank-crashed"
    (one,) = conclude(judge(files, finished={1}))
    assert (one.cause, blamed(one)) == ("missing-collective", [1])


def test_who_has_finished_did_not_end_without_a_word() -> None:
    texts = waits("", 0), "local_rank=1 exiting\n", "step 4\n", waits("", 3)
    files = [parsed(text, f"rank{n}-gpu01.log", n) for n, text in enumerate(texts)]
    (one,) = conclude(judge(files, finished={1}))
    assert (one.cause, blamed(one)) == ("rank-crashed", [2])
