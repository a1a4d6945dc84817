"""Whose a line is: by its file and its label before what its text says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.parsing.owners import Owners
from hangtop_core.model.file_log import Place
from support.logs import NEAR, judged, parsed
from support.verdicts import blamed

if TYPE_CHECKING:
    from hangtop_core.logs.judging.judged import Judged

QUOTED = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/job/train.py", line 9, in step\n'
    "[rank0]:     x()\n"
    "[rank0]: KeyError: 'labels'\n"
)


def behind(label: str, text: str = QUOTED) -> str:
    """The lines of a text, each with a label before it."""
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def of_rank(number: int) -> str:
    """What torch's hook prints in a rank."""
    return QUOTED.replace("[rank0]", f"[rank{number}]")


def quotations(found: Judged) -> list[tuple[tuple[int, ...], str]]:
    return [(one.ranks, one.record.means) for one in found.notes if one.record.code == "quote"]


QUOTES = [
    ([behind("[default1]:")], ("a.log",)),
    ([behind("[3,1]<stderr>:") + "[3,1]<stderr>:[rank1]:[W1121 x\n"], ("a.log",)),
    ([behind("[trainer1/1]:")], ("a.log",)),
    ([behind("1: ") + "2: step\n"], ("a.log",)),
    (["step 1\n", "step 1\n" + QUOTED], ("worker_0.log", "worker_1.log")),
    (["step 1\n" + QUOTED], ("rank_1.log",)),
    (["step 1\n" + QUOTED], ("mpi/rank.1/stdout",)),
    (["x\n", QUOTED], ("d/a_1/attempt_0/0/stderr.log", "d/a_1/attempt_0/1/stderr.log")),
]


@pytest.mark.parametrize(("texts", "paths"), QUOTES, ids=[one[0][-1][:16] for one in QUOTES])
def test_what_a_rank_quotes_of_another_is_a_quotation_and_blames_nobody(
    texts: list[str], paths: tuple[str, ...]
) -> None:
    found = judged(*texts, paths=paths)
    assert quotations(found) == [((1,), "quotes rank 0: KeyError: 'labels'")]
    assert found.first is None
    assert not conclude(found)
    assert found.last[1][0] in ("[rank0]: KeyError: 'labels'", "[W1121 x")


def test_what_an_exception_quotes_is_of_the_rank_that_raised_it() -> None:
    """As where a rank raises what it was told of the error of another one."""
    error = "RuntimeError: rank 0 has failed:"
    raised = of_rank(1).replace("KeyError: 'labels'", error)
    found = judged(raised + behind("[rank1]: "))
    assert found.first is not None
    assert (found.first.ranks, found.first.record.text) == (
        (1,),
        "RuntimeError: rank 0 has failed:",
    )
    assert blamed(conclude(found)[0]) == [1]
    assert found.ranks == (1,)


def test_a_file_of_one_rank_is_that_ranks_whatever_it_prints() -> None:
    file = msgspec.structs.replace(parsed(of_rank(5)), place=Place(rank=1))
    found = judge([file])
    assert quotations(found) == [((1,), "quotes rank 5: KeyError: 'labels'")]


@pytest.mark.parametrize("rank", [8, 11])
@pytest.mark.parametrize(
    ("before", "path"), [("1: ", "a.log"), ("", "slurm-47_1.out"), ("", "node_rank_1.log")]
)
def test_a_number_of_a_node_is_no_rank_that_quotes(before: str, path: str, rank: int) -> None:
    """As of srun, of which each task is a torchrun."""
    found = judged(behind(before, of_rank(rank)) + behind(before, "step\n"), paths=(path,))
    assert not quotations(found)
    assert blamed(conclude(found)[0]) == [rank]


def test_names_count_as_ranks_where_a_line_of_one_of_them_agrees() -> None:
    files = ["[rank1]:[W1121 x\n", "step 1\n" + of_rank(5)]
    found = judged(*files, paths=("rank_1.log", "rank_2.log"))
    assert quotations(found) == [((2,), "quotes rank 5: KeyError: 'labels'")]
    assert not quotations(judged(files[1], paths=("rank_2.log",)))


def labelled(*pairs: tuple[str, int, int]) -> str:
    """Warnings of torch by ranks of nodes, as `[n2:0]:[rank2]:[W...`."""
    return "".join(f"[{node}:{local}]:[rank{rank}]:[W1121 x\n" for node, local, rank in pairs)


TWO = labelled(("n1", 0, 0), ("n1", 1, 1), ("n2", 0, 2))


def test_ranks_of_a_node_follow_from_each_other() -> None:
    """Of local rank 1 of n2 no line tells the global one."""
    found = judged(TWO + behind("[n2:1]:", QUOTED.replace("[rank0]: ", "")) + "[n2:1]:step 3\n")
    assert found.ranks == (0, 1, 2, 3)
    assert [one.ranks for one in (found.first, *found.survived) if one is not None] == [(3,)]


def test_what_a_rank_of_another_node_quotes_is_known_by_its_node() -> None:
    found = judged(TWO + behind("[n2:1]:"))
    assert quotations(found) == [((3,), "quotes rank 0: KeyError: 'labels'")]
    # Of n3 no line tells which ranks it has: it is none of the other nodes'.
    found = judged(TWO + behind("[n3:1]:"))
    assert quotations(found) == [((), "quotes rank 0: KeyError: 'labels'")]
    assert not conclude(found)


def test_a_long_quotation_does_not_tell_which_ranks_a_node_has() -> None:
    found = judged(TWO + behind("[n1:0]:", of_rank(1) * 9))
    assert quotations(found) == [((0,), "quotes rank 1: KeyError: 'labels'")]


def test_nodes_of_one_rank_each_are_told_apart_by_what_only_one_of_them_can_be() -> None:
    text = behind("[pod/t-1/main] [default0]:") + "[pod/t-0/main] [default0]:[rank0]:[W1121 x\n"
    found = judged(text + "[pod/t-1/main] [default0]:[rank1]:[W1121 x\n")
    assert quotations(found) == [((1,), "quotes rank 0: KeyError: 'labels'")]


def test_torchruns_report_tells_which_ranks_a_node_has() -> None:
    report = "Failures:\n[1]:\n  time      : 2026-11-21_11:17:50\n  host      : n2.cluster\n"
    report += "  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n==========\n"
    text = "[n1:0]:step 1\n[n2:0]:step 1\n[n1:1]:step 1\n[n2:1]:step 1\n" + report
    file = parsed(text)
    whose = Owners([file])
    ranks = {(s.origin.node, s.origin.local): whose.rank(0, s.origin) for s in file.streams}
    assert (ranks["n2", 0], ranks["n2", 1], ranks["n1", 0]) == (4, 5, None)


def test_an_outer_label_tells_the_node_before_an_inner_one() -> None:
    """The name in torchrun's label was expanded on one node for all."""
    lines = [f"{node}: [head:{local}]:step\n" for node in ("n1", "n2") for local in (0, 1)]
    file = parsed("".join(lines))
    whose = Owners([file])
    assert {whose.node(0, s.origin) for s in file.streams if s.lines} == {"n1", "n2"}


EARLY, LATE = "2026-11-21 11:00:00,1 INFO step 1\n", "2026-11-21 11:30:00,1 INFO step 2\n"


def test_the_last_line_of_a_rank_is_the_newest_by_any_clock() -> None:
    # Within a file its order counts: the traceback comes after what tells a time.
    found = judged(f"[default1]:{LATE}" + behind("[default1]:", of_rank(1)))
    assert found.last[1][0] == "KeyError: 'labels'"
    # Of two files the one that was written to last.
    out, err = parsed(LATE, "rank_1.out"), parsed("Killed\n", "rank_1.err", 1)
    out = msgspec.structs.replace(out, changed=NEAR - 60)
    assert judge([out, err]).last[1][0] == "Killed"
    assert judge([err, out]).last[1][0] == "Killed"
    # Times in lines count more than when files were written to, as by copying them.
    first, second = parsed(LATE, "rank_1.out"), parsed(EARLY, "rank_1.err", 1)
    first = msgspec.structs.replace(first, changed=NEAR - 60)
    assert judge([first, second]).last[1][0].endswith("step 2")


def test_the_last_time_of_a_rank_is_that_of_a_line_before_its_last_one() -> None:
    found = judged(f"[default1]:{LATE}[default1]:no time\n[default0]:x\n")
    text, at = found.last[1]
    assert text == "no time"
    assert at is not None
    assert found.last[0] == ("x", None)


def test_times_that_tools_put_before_lines_are_clocks_of_the_last_line() -> None:
    lines = [f"2026-11-21T11:17:5{n}.123456789Z [default{n % 2}]:step" for n in range(4)]
    found = judged("\n".join(lines) + "\n")
    assert (found.last[1][1] or 0.0) - (found.last[0][1] or 0.0) == pytest.approx(1.0)


ROW = "[n1:0]:a\n[n1:1]:a\n[n2:2]:a\n[n2:3]:a\n"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (ROW, [0, 1, 2, 3]),
        ("[n1:0]:a\n[n2:1]:[rank1]: a\n", [0, 1]),
        ("[n1:0]:a\n[n2:1]:a\n", [None, None]),  # local rank 0 of one, and 1 of another
        ("[n1:0]:a\n[n1:1]:a\n[n2:0]:a\n[n2:1]:[rank3]: a\n", [None, None, 2, 3]),
        ("[n1:0]:a\n[n1:1]:a\n[n2:2]:[rank6]: a\n[n2:3]:a\n", [None, None, 6, 7]),
    ],
)
def test_labels_of_several_nodes_may_hold_global_ranks(text: str, ranks: list[int | None]) -> None:
    """As `hangtop run` writes them: no two nodes have the same number."""
    file = parsed(text)
    whose = Owners([file])
    assert [whose.rank(0, stream.origin) for stream in file.streams] == ranks


def test_what_a_label_with_a_global_rank_quotes_is_a_quotation() -> None:
    own = "".join(f"[n{1 + rank // 2}:{rank}]:[rank{rank}]: a\n" for rank in range(4))
    lines = ("Traceback (most recent call last):", '  File "/a.py", line 1, in f', "KeyError: 1")
    found = judged(own + "".join(f"[n2:3]:[rank0]: {line}\n" for line in lines))
    assert found.first is None
    assert [(one.record.code, one.ranks) for one in found.notes] == [("quote", (3,))]
