"""Streams told apart and tracebacks put together, however their lines were mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.parsing.blocks import MAX_CHARS, Crash, Summary, Traceback
from hangtop_core.logs.parsing.parse import MAX_RECORDS, Parser
from hangtop_core.model.file_log import Place
from hangtop_core.report.logs import logs_text
from support.logs import parsed, recording

if TYPE_CHECKING:
    from hangtop_core.logs.parsing.blocks import Block
    from hangtop_core.model.file_log import Record

TRACEBACK = """\
Traceback (most recent call last):
  File "/data/train/job.py", line 24, in <module>
    step(n)
  File "/data/train/job.py", line {line}, in step
    data["labels"]
    ~~~~^^^^^^^^^^
KeyError: 'labels'
"""


def errors(log: object) -> list[Record]:
    return [record for record in log.records if record.part != "info"]  # type: ignore[attr-defined]


def test_a_traceback_has_its_frames_and_where_it_is() -> None:
    (one,) = errors(parsed("step 1\n" + TRACEBACK.format(line=13) + "step 2\n"))
    assert (one.text, one.part, one.order) == ("KeyError: 'labels'", "root", 2)
    assert [call.text for call in one.calls] == ["job.py:24 (<module>)", "job.py:13 (step)"]
    assert one.lines[3] == '  File "/data/train/job.py", line 13, in step'


def test_the_innermost_frame_outside_libraries_is_where_it_was() -> None:
    text = TRACEBACK.format(line=13).replace(
        "KeyError",
        '  File "/opt/lib/python3.11/site-packages/torch/x.py", line 3, in y\n    z()\nKeyError',
    )
    (one,) = errors(parsed(text))
    assert one.where is not None
    assert one.where.text == "job.py:13 (step)"


def test_chained_exceptions_are_one_record() -> None:
    text = TRACEBACK.format(line=13)
    text += "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += TRACEBACK.format(line=15).replace("KeyError: 'labels'", "app.StepError: step 3 failed")
    (one,) = errors(parsed(text + "\nnext\n"))
    assert one.text == "app.StepError: step 3 failed"
    assert one.fields["first"] == "KeyError: 'labels'"


def test_what_a_dataloader_worker_raised_is_kept() -> None:
    worker = TRACEBACK.format(line=7).replace("Traceback", "Original Traceback")
    text = TRACEBACK.format(line=13).replace(
        "KeyError: 'labels'\n",
        "ValueError: Caught ValueError in DataLoader worker process 1.\n" + worker,
    )
    (one,) = errors(parsed(text))
    assert one.lines[-1] == "KeyError: 'labels'"
    assert len(one.calls) == 4


def test_two_tracebacks_without_prefixes_that_are_mixed_are_two_and_nothing_is_made_up() -> None:
    head = "Traceback (most recent call last):\n"
    text = head + head + '  File "a.py", line 1, in a\nKeyError: 1\n'
    first, second = errors(parsed(text))
    assert (first.part, second.text) == ("error", "KeyError: 1")


def test_a_traceback_whose_beginning_was_cut_off_is_one() -> None:
    """As people paste them, and as `grep` leaves them."""
    cut = TRACEBACK.format(line=13).partition("\n")[2]
    (one,) = errors(parsed("step 1\n" + cut + "step 2\n"))
    assert (one.text, one.part, one.order) == ("KeyError: 'labels'", "root", 2)
    assert [call.text for call in one.calls] == ["job.py:24 (<module>)", "job.py:13 (step)"]
    both = errors(parsed("".join(f"[n1:{r}]{line}\n" for line in cut.splitlines() for r in (0, 1))))
    assert [record.origin.local for record in both] == [0, 1]
    assert {record.text for record in both} == {"KeyError: 'labels'"}


@pytest.mark.parametrize(
    "after", ["INFO: step 3", "step 3", "", "Loss: 0.3", "Graph break: user code", "Error:x"]
)
def test_frames_without_an_error_are_none(after: str) -> None:
    """Of print_stack, of a logger's stack_info, and of faulthandler."""
    frames = '  File "a.py", line 3, in f\n    g()\n'
    assert errors(parsed(f"Stack (most recent call last):\n{frames}{after}\n")) == []
    assert errors(parsed(f"{frames}")) == []
    assert errors(parsed(f'Thread 0x1:\n  File "a.py", line 3 in f\n{after}\n')) == []


def test_torchruns_summary_tells_how_every_rank_left() -> None:
    log = parsed(recording("tee_kill"))
    left = {r.fields["rank"]: r.fields["exit"] for r in log.records if "rank" in r.fields}
    assert left == {"0": "-15", "1": "-9", "2": "-15", "3": "-15"}


def test_python_tells_of_a_crash() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    )
    text += '  File "/data/train/job.py", line 9 in step\n'
    text += '  File "/data/train/job.py", line 30 in <module>\n'
    (one,) = errors(parsed(text))
    assert (one.code, one.cause) == ("SEGV", "rank-crashed")


@pytest.mark.parametrize("helpers", [1, 90])
def test_where_it_crashed_is_told_by_the_thread_that_did(helpers: int) -> None:
    """As faulthandler prints it: other threads come first, and may have hundreds of frames."""
    other = "Thread 0x{:016x} (most recent call first):\n"
    other += '  File "/data/train/loader.py", line 5 in wait\n' * 99
    other += '  File "/data/train/loader.py", line 77 in run\n\n'
    text = "Fatal Python error: Segmentation fault\n\n"
    text += "".join(other.format(number) for number in range(helpers))
    text += "Current thread 0x00007f0000000001 (most recent call first):\n"
    text += '  File "/data/train/job.py", line 9 in step\n'
    text += '  File "/data/train/job.py", line 30 in <module>\n\n'
    text += "Extension modules: numpy (total: 1)\n"
    (one,) = errors(parsed(text + "step 3\n"))
    assert [call.text for call in one.calls] == ["job.py:30 (<module>)", "job.py:9 (step)"]
    assert one.where is not None
    assert one.where.name == "step"


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (Traceback(1, "Traceback (most recent call last):", own=False), "    "),
        (Crash(1, "Fatal Python error: Aborted"), "  File "),
        (Summary(1, "Failures:", 0.0), "  "),
    ],
)
def test_a_block_of_long_lines_ends(block: Block, line: str) -> None:
    """There may be one for each stream: what each holds is bounded."""
    line += "x" * 60_000
    while block.take(line):
        assert sum(map(len, block.lines)) <= MAX_CHARS
    assert len(block.lines) == MAX_CHARS // len(line) + 1


def test_without_a_current_thread_all_frames_of_a_crash_count() -> None:
    text = "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
    (one,) = errors(parsed(text + '  File "/data/train/job.py", line 9 in step\n'))
    assert [call.text for call in one.calls] == ["job.py:9 (step)"]


def test_progress_without_line_ends_does_not_hide_what_follows() -> None:
    text = "".join(f"{n}%|###| loss=1\r" for n in range(100)) + "[rank1]: "
    text += TRACEBACK.format(line=13).replace("\n", "\n[rank1]: ")
    (one,) = errors(parsed(text))
    assert (one.text, one.origin.rank) == ("KeyError: 'labels'", 1)


def test_a_traceback_behind_an_indented_progress_bar_has_its_frames() -> None:
    text = "\r  7%|#  | 7/99\r  8%|#  | 8/99" + TRACEBACK.format(line=13)
    text += "\r  9%|#  | 9/99" * 30
    (one,) = errors(parsed(text))
    assert (one.text, len(one.calls)) == ("KeyError: 'labels'", 2)
    assert one.lines[-1] == "KeyError: 'labels'", "the bar goes on behind it"
    assert one.after is not None
    assert one.after.lines == 30, "who still counts has not ended"


def test_escape_sequences_and_other_hostile_bytes_are_gone() -> None:
    text = "[rank1]: \x1b[31mTraceback (most recent call last):\x1b[0m\n"
    text += '[rank1]:   File "\x1b]0;x\x07/a\u202e.py", line 3, in f\n'
    text += "[rank1]: KeyError: \x1b]52;c;aGk=\x07\x1b[2J\0'\u202ex'\n"
    (one,) = errors(parsed(text))
    everything = "".join((one.text, *one.lines, *(call.text for call in one.calls)))
    assert everything.isprintable()
    assert everything.isascii()
    assert one.text == "KeyError: 'x'"


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_pieces_of_any_size_give_the_same(piece: int) -> None:
    text = recording("tee_raise")
    assert parsed(text, piece=piece).records == parsed(text).records


def test_endless_errors_take_bounded_memory() -> None:
    parser = Parser(0, 0.0)
    for start in range(0, 6000, 1000):
        text = "".join(
            f"[E1121 11:11:11.1 a.cpp:1] word{chr(97 + n % 26)}{'x' * (n // 26)}\n"
            for n in range(start, start + 1000)
        )
        parser.feed(text)
    parser.finish()
    assert len(parser.records) <= MAX_RECORDS
    log = parser.log("x.log", Place())
    assert log.left_out == 6000 - MAX_RECORDS
    assert "not told apart: 2000 more lines of note in x.log" in logs_text(
        judge([log]), (), [log], 80
    )
    same = Parser(0, 0.0)
    same.feed(TRACEBACK.format(line=13) * 1000)
    same.finish()
    assert [record.count for record in same.records] == [1000]


MESSAGES = st.sampled_from(
    ["step 1", "", "  indented", "2026-11-21 11:17:50,048 INFO x", TRACEBACK, "KeyError: 'a'"]
)


@settings(max_examples=60)
@given(
    streams=st.lists(st.lists(MESSAGES, min_size=1, max_size=5), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_any_interleaving_gives_the_same_records(streams: list[list[str]], order: object) -> None:
    """Lines of several ranks mixed in any order, each rank's own order kept."""
    queues = []
    for rank, some in enumerate(streams):
        text = "\n".join(one.format(line=rank) if "{line}" in one else one for one in some)
        queues.append([f"[default{rank}]:{line}" for line in text.split("\n")])
    apart = {}
    for rank, lines in enumerate(queues):
        log = parsed("\n".join(lines) + "\n")
        apart[rank] = [(r.text, r.lines, r.calls, r.count) for r in log.records]
    mixed = []
    left = [list(lines) for lines in queues]
    while any(left):
        one = order.choice([lines for lines in left if lines])  # type: ignore[attr-defined]
        mixed.append(one.pop(0))
    log = parsed("\n".join(mixed) + "\n")
    for rank in apart:
        some = [r for r in log.records if r.origin.local == rank]
        assert [(r.text, r.lines, r.calls, r.count) for r in some] == apart[rank]


def test_a_traceback_has_the_time_that_kubectl_puts_before_it() -> None:
    head = "[pod/train-0/main] 2026-11-21T11:17:5{}.123456789Z [default1]:{}\n"
    lines = [*TRACEBACK.format(line=13).splitlines(), "step 2"]
    log = parsed("".join(head.format(number, line) for number, line in enumerate(lines)))
    (one,) = errors(log)
    assert (one.text, one.exact, one.origin.local) == ("KeyError: 'labels'", True, 1)
    assert one.at == pytest.approx(1795259870.123, abs=0.001)


@pytest.mark.parametrize("piece", [0, 1, 7])
def test_lines_are_counted_as_editors_do(piece: int) -> None:
    """Blank lines count, and what a progress bar has overwritten does not."""
    text = "\n\n0%\r50%\r100%\nstep\r\n" + TRACEBACK.format(line=13)
    (one,) = errors(parsed(text, piece=piece))
    assert one.order == 5


ASYNC = (
    "[E1127 19:25:26.7 ProcessGroupNCCL.cpp:612] [Rank {0}] Collective WorkNCCL(SeqNum=32, "
    "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) raised the following async "
    "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.28\n"
)
LOST = (
    "ncclRemoteError: A call failed possibly due to a network error.\n"
    "Last error:\n"
    "socketProgress: Connection closed by remote peer n{0}<40213>\n"
)
RAISED = "Exception raised from check at /a/ProcessGroupNCCL.cpp:2770 (most recent call first):\n"
FRAMES = "frame #0: c10::Error::Error() + 0x9d\nframe #1: <unknown function> + 0x1\n\n"


@pytest.mark.parametrize("prefix", ["", "[default{0}]:"])
def test_what_nccl_has_told_the_watchdog_is_of_the_rank_whose_message_begins(prefix: str) -> None:
    text = ""
    for rank in (3, 1):
        lines = (f"[rank{rank}]:" + ASYNC + LOST + RAISED + FRAMES).format(rank).splitlines()
        text += "".join(f"{prefix.format(rank)}{line}\n" for line in lines)
    text += "".join(f"{prefix.format(rank)}nccl is great\n" for rank in (1, 3))
    log = parsed(text)
    records = {r.origin.rank: r for r in log.records if r.code == "N10"}
    assert [record.fields["peer"] for record in records.values()] == ["n3<40213>", "n1<40213>"]
    assert list(records) == [3, 1]
    for rank, one in records.items():
        assert (one.part, one.how, one.fields["known"]) == ("cascade", "async", "N6")
        assert one.text.startswith("Collective WorkNCCL(SeqNum=32, ")
        assert one.text.endswith(
            f"; Last error: socketProgress: Connection closed by remote peer n{rank}<40213>"
        )
        assert len(one.lines) == 7
    assert {r.code for r in log.records} == {"N10"}


def test_what_comes_after_such_a_message_is_of_nobody_again() -> None:
    text = "[rank3]:" + ASYNC.format(3) + LOST.format(3)
    text += "CUDA out of memory. Tried to allocate 2.00 GiB\n[rank3]: step 4\nLast error:\nKilled\n"
    log = parsed(text)
    assert [(r.code, r.origin.rank) for r in log.records] == [("N10", 3), ("OOM", None)]


def test_an_error_of_nccl_that_is_not_known_is_one_of_its_own() -> None:
    line = ASYNC.format(3).replace("remote process exited or there was a network error", "new")
    (one,) = parsed(f"[rank3]:{line}Last error:\nNET/X : no such thing\n").records
    assert (one.part, one.means, one.cause) == ("root", "", None)
    assert one.text.endswith("; Last error: NET/X : no such thing")
