"""Whose a line is, from the prefixes that launchers and tools write."""

from __future__ import annotations

import time

import pytest

from hangtop_core.logs.parsing.prefix import MAX_HEADS, Prefixes, split
from hangtop_core.model.file_log import Origin

SAMPLES = [
    ("[default1]:  text", Origin(local=1, group="default"), "  text"),
    ("[node-1:0]:text", Origin(local=0, node="node-1", group="node-1:"), "text"),
    ("[trainer3/1]:text", Origin(rank=3, local=1, group="trainer"), "text"),
    ("[rank3]: Traceback", Origin(rank=3, own=True), "Traceback"),
    ("[rank3]:   File", Origin(rank=3, own=True), "  File"),
    ("[rank3]:[W1121 x", Origin(rank=3, own=True), "[W1121 x"),
    (
        "[default1]:[rank5]: KeyError",
        Origin(rank=5, local=1, group="default", own=True),
        "KeyError",
    ),
    ("[1,3]<stderr>:text", Origin(rank=3, std="stderr"), "text"),
    ("[prterun-n1-42@1,3]<stdout>:text", Origin(rank=3, std="stdout"), "text"),
    ("Sat Nov 21 02:20:43 2026[1,3]<stdout>:text", Origin(rank=3, std="stdout"), "text"),
    ("[pod/train-0/main] text", Origin(node="train-0", group="[pod/train-0/main]"), "text"),
    (
        "(Worker pid=4711, ip=10.0.0.7) text",
        Origin(node="10.0.0.7", group="(Worker pid=4711, ip=10.0.0.7)"),
        "text",
    ),
    # No prefixes, though they look a little like one.
    ("[0]:", Origin(), "[0]:"),
    ("[127.0.0.1]:1234 refused", Origin(), "[127.0.0.1]:1234 refused"),
    ("[E1206 18:44:12.71 File.cpp:1] x", Origin(), "[E1206 18:44:12.71 File.cpp:1] x"),
    ("ValueError: 3", Origin(), "ValueError: 3"),
    ("3: three", Origin(), "3: three"),
]


@pytest.mark.parametrize(("line", "origin", "text"), SAMPLES, ids=[s[0][:24] for s in SAMPLES])
def test_prefixes_are_told_apart(line: str, origin: Origin, text: str) -> None:
    assert Prefixes().take(line) == (origin, text)


def test_labels_of_srun_count_where_all_lines_have_one() -> None:
    some = Prefixes(" 3: a\n10: b\n 3: ValueError: x\n")
    assert some.take("10: b") == (Origin(task=10), "b")
    assert some.take(" 3: [default1]:x")[0] == Origin(task=3, local=1, group="default")


def test_digits_of_nodes_count_where_all_lines_have_them_and_are_no_times() -> None:
    some = Prefixes("[5:0]:a\n[5:2]:b\n[12:1]:c\n[5:0]:ValueError: x\n")
    assert some.take("[12:1]:c") == (Origin(local=1, node="12", group="12:"), "c")
    clock = Prefixes("[11:58]:a\n[11:58]:b\n[11:59]:c\n[12:01]:d\n")
    assert clock.take("[12:01]:d") == (Origin(), "[12:01]:d")


SHORT = [
    "[5:0]Traceback (most recent call last):\n[5:0]  File x\n",
    "[5:0]step 1\n[5:1]step 1\n[6:0]step 1\n[5:1]step 2\n[6:0]step 2\n",
    "[5:0]:Traceback (most recent call last):\n",
    # Beside the reports of torchrun, which have no prefix.
    "[5:0]:[rank1]: KeyError\n" + "x\n" * 99,
    '[5:1]  File "a.py", line 3, in f\n' + "x\n" * 99,
]


@pytest.mark.parametrize("sample", SHORT)
def test_digits_of_nodes_count_without_a_colon_and_where_tracebacks_follow(sample: str) -> None:
    colon = ":" if "]:" in sample else ""
    taken = Prefixes(sample).take(f"[12:1]{colon}  File")
    assert taken == (Origin(local=1, node="12", group="12:"), "  File")


@pytest.mark.parametrize(
    "sample",
    [
        # Clocks, also of ranks that print nearly at the same time; steps; slices.
        "[11:58] a\n[11:57] b\n[11:58] c\n[12:01] d\n",
        "[00:01]a\n[00:00]b\n[00:03]c\n[00:02]d\n",
        "[1:100]a\n[1:200]a\n[2:100]a\n[1:300]a\n",
        "[0:1] x\n[0:0] x\n[0:1] x\n",
    ],
)
def test_clocks_and_steps_in_brackets_are_no_nodes(sample: str) -> None:
    line = sample.splitlines()[1]
    assert Prefixes(sample).take(line) == (Origin(), line)


def test_what_a_rank_quotes_is_text_behind_its_own_prefix() -> None:
    origin = Origin(rank=1, own=True)
    assert Prefixes().take("[rank1]: [rank0]: KeyError") == (origin, "[rank0]: KeyError")
    assert Prefixes().take("[rank0]:[rank8]: x")[0].rank == 8  # of `--role rank`


def test_ranks_of_mpiexec_count_where_all_lines_have_them_and_are_no_steps() -> None:
    """As MPICH's -prepend-rank and Intel MPI's -l print: written by hand, neither was at hand."""
    some = Prefixes("[0] a\n[10] a\n[3] a\n[0] b\n[3] b\n[10] b\n[3] ValueError: x\n")
    assert some.take("[10] b") == (Origin(task=10), "b")
    steps = Prefixes(
        "".join(f"[{step + rank % 2}] loss\n" for step in range(9) for rank in range(4))
    )
    assert steps.take("[3] loss") == (Origin(), "[3] loss")
    assert Prefixes("[7] a\n[7] b\n").take("[7] b") == (Origin(), "[7] b")


def test_nodes_and_local_ranks_count_without_a_colon_where_nearly_all_lines_have_them() -> None:
    some = Prefixes("[host1:0]  File\n[host1:1]  File\n[host1:0]KeyError: 1\n[host1:1]    f()\n")
    head = Origin(local=1, node="host1", group="host1:")
    assert some.take("[host1:1]    f()") == (head, "    f()")
    lines = Prefixes("[trainer:98] a\n[data:12] b\n[trainer:99] c\n")
    assert lines.take("[data:12] b") == (Origin(), "[data:12] b")


def test_nodes_of_pdsh_count_where_all_lines_have_one() -> None:
    some = Prefixes("n1: a\nn2: [default0]:b\nn1: c\nn2: d\n")
    assert some.take("n2: [default0]:b") == (Origin(local=0, node="n2", group="default"), "b")
    assert some.take("n3: x") == (Origin(), "n3: x")


def test_pods_of_stern_count_where_all_lines_have_one() -> None:
    """Written by hand after stern's default template: no cluster was at hand."""
    some = Prefixes("train-0 main a\ntrain-1 main b\ntrain-0 main c\ntrain-1 main d\n")
    pod = Origin(local=1, node="train-1", group="default")
    assert some.take("train-1 main [default1]:  File") == (pod, "  File")
    plain = Prefixes("re-run of 1\nre-run of 2\nstep 1 a\nstep 1 b\nstep 1 c\n")
    assert plain.take("re-run of 3") == (Origin(), "re-run of 3")


@pytest.mark.parametrize("before", ["[pod/a-0/main] {}", "{}", "{}stderr F ", "n1: {}"])
def test_times_that_tools_put_before_every_line_are_no_text(before: str) -> None:
    """kubectl logs --timestamps leaves out zeros at the end of a second's parts."""
    times = [
        f"2026-11-21T11:17:5{second}.{part}Z " for second, part in ((0, "123456789"), (1, "5"))
    ]
    lines = [before.format(at) + "[default1]:  File" for at in times * 2]
    some = Prefixes("\n".join(lines))
    for at, line in zip(times, lines, strict=False):
        origin, text = some.take(line)
        assert (origin.local, text) == (1, "  File")
        assert some.time.startswith(at)
    iso = "2026-11-21T11:17:50.123Z INFO step"
    assert Prefixes(f"{iso}\n{iso}\n").take(iso) == (Origin(), iso)


def test_levels_and_exceptions_are_no_nodes() -> None:
    assert Prefixes("INFO: a\nINFO: b\nWARNING: c\n").hosts == frozenset()
    assert Prefixes("KeyError: a\nKeyError: b\n").hosts == frozenset()


def test_what_a_progress_bar_overwrites_is_lines() -> None:
    assert list(split("10%\r20%\r\nend")) == ["10%", "20%", "end"]
    glued = "step 3[rank1]: Traceback (most recent call last):"
    assert list(split(glued)) == ["step 3", "[rank1]: Traceback (most recent call last):"]


def test_a_line_that_torchrun_has_put_behind_a_progress_bar_begins_there() -> None:
    """As torchrun 2.13 --tee copies what `\\r0%|##` has left without an end."""
    text = "[default0]:0%|##[default1]:\n[default1]:1%|#[default1]:[rank1]: Traceback\n"
    text += "[default0]:a[2]:"
    some = Prefixes(text)
    assert list(some.split(text)) == [
        (0, "[default0]:0%|##"),
        (0, "[default1]:"),
        (1, "[default1]:1%|#"),
        (1, "[default1]:[rank1]: Traceback"),
        (2, "[default0]:a[2]:"),
    ]


def test_pieces_of_lines_that_mpirun_has_tagged_are_put_together() -> None:
    """As Open MPI 4 prints what a process writes in several pieces."""
    told = "[1,2]<stderr>:KeyError[1,2]<stderr>:: [1,1]<stdout>:step[1,2]<stderr>:'lost'"
    assert list(split(told)) == ["[1,2]<stderr>:KeyError: 'lost'", "[1,1]<stdout>:step"]


def test_prefixes_that_differ_from_line_to_line_take_no_more_memory_for_it() -> None:
    """mpirun --timestamp-output, and whoever makes up names."""
    prefixes = Prefixes()
    for number in range(3 * MAX_HEADS):
        origin, _ = prefixes.take(f"[default{number}]:x")
        assert origin.local == number
    assert len(prefixes._origins) <= MAX_HEADS


def test_many_pieces_of_one_tag_are_put_together_in_time() -> None:
    line = "[1,0]<stdout>:0123456789012345678901234567890123456789" * 200_000
    began = time.process_time()
    assert [len(one) for one in split(line)] == [14 + 40 * 200_000]
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize(
    ("row", "heads", "rank"),
    [
        ("[default2]:bar 5/6[rank2]: Traceback", ("[default2]:",) * 9, 2),
        ("[vm:1]:bar 5/6[vm:2]:bar 5/6[rank2]: Traceback", ("[vm:1]:", "[vm:2]:"), 2),
        ("[1,2]<stderr>:\rbar 5/6[rank2]: Traceback", ("[1,1]<stderr>:",), 2),
        (
            "[1,3]<stderr>:\rbar 5/6[1,1]<stderr>:\rbar 5/6[1,1]<stderr>:[rank1]: Traceback",
            ("[1,1]<stderr>:",),
            1,
        ),
        ("2: \rbar 4/6\rbar 5/6[rank2]: Traceback", ("1: ", "2: "), 2),
        ("\rbar 4/6\rbar 5/6[rank2]: Traceback", ("",), 2),
    ],
)
def test_an_error_behind_a_progress_bar_is_of_the_stream_it_goes_on_in(
    row: str, heads: tuple[str, ...], rank: int
) -> None:
    """As real launchers wrote them: the frames of the traceback stand behind both prefixes."""
    steps = "".join(f"{head}step {n}\n" for n in range(9) for head in heads)
    prefixes = Prefixes(steps + heads[0] + 99 * "\rbar" + "\n")
    *bars, (origin, text) = [prefixes.take(line) for _, line in prefixes.split(row)]
    head = row[: row.index("bar")].rstrip("\r") if "[vm:2]" not in row else "[vm:2]:"
    head = "[1,1]<stderr>:" if rank == 1 else head
    [(_, after)] = prefixes.split(f"{head}[rank{rank}]:   File")
    assert (origin, text) == (prefixes.take(after)[0], "Traceback")
    assert {text for _, text in bars} <= {"bar 4/6", "bar 5/6"}
