"""strace's lines, as strace 6.1 wrote them, folded by thread, call and what they were on."""

from __future__ import annotations

from typing import get_args

import pytest

from hangtop_core.tools.strace import Calls, Filter, explained, folded, in_place, on, shown, table

TCP = "6<TCP:[127.0.0.1:47662->127.0.0.1:53089]>"
LINES = [
    "[pid  3060] 15:04:58.755684 clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, {tv_sec=36682, "
    "tv_nsec=962776672},  <unfinished ...>",
    "[pid  3118] 15:04:58.761033 <... restart_syscall resumed>) = -1 ETIMEDOUT (Connection timed "
    "out) <0.005346>",
    "[pid  3118] 15:04:58.761160 futex(0x7f08e4000ba0, FUTEX_WAIT_BITSET_PRIVATE, 0, "
    "{tv_sec=36682, tv_nsec=772396160}, FUTEX_BITSET_MATCH_ANY <unfinished ...>",
    "[pid  3118] 15:04:58.861316 <... futex resumed>) = -1 ETIMEDOUT (Connection timed out) "
    "<0.100088>",
    "[pid  3118] 15:04:58.861421 futex(0x7f08e4000bbb, FUTEX_WAIT_BITSET_PRIVATE, 0, "
    "{tv_sec=36682, tv_nsec=872656226}, FUTEX_BITSET_MATCH_ANY) = -1 ETIMEDOUT (Connection timed "
    "out) <0.100000>",
    '[pid  3117] 15:04:58.855018 openat(AT_FDCWD</tmp>, "/data/x y", O_RDONLY|O_CLOEXEC) = '
    "8</data/x y> <0.000019>",
    '[pid  3117] 15:04:58.855425 read(8</data/x y>, "a) = 7 <9.9>"..., 525) = 524 <0.000008>',
    '[pid  3117] 15:04:58.855426 read(8</data/x y>, "", 1) = 0 <0.000006>',
    "[pid  3117] 15:04:58.855518 close(8</data/x y>) = 0 <0.000009>",
    '[pid  3117] 15:04:58.855999 openat(AT_FDCWD</tmp>, "/no", O_RDONLY) = -1 ENOENT (No such '
    "file or directory) <0.000009>",
    f'[pid  3116] 15:04:59.169050 sendto({TCP}, "xx"..., 100, 0, NULL, 0 <unfinished ...>',
    "[pid  3116] 15:04:59.169187 <... sendto resumed>) = 100 <0.000076>",
    f"[pid  3116] 15:04:59.169253 poll([{{fd={TCP}, events=POLLIN}}], 1, -1",
    "[pid  3118] 15:04:59.2 --- SIGUSR1 {si_signo=SIGUSR1} ---",
    "strace: Process 3120 attached",
]


@pytest.fixture
def calls() -> Calls:
    made = Calls(3060)
    for line in LINES:
        made.add(line)
    return made


def test_lines_are_of_the_kind_that_was_asked_for_also_where_a_call_goes_on() -> None:
    made = Calls(3060)
    told: dict[Filter, list[int]] = {wanted: [] for wanted in get_args(Filter)}
    for number, line in enumerate(LINES):
        made.add(line)
        for wanted, lines in told.items():
            if made.fits(line, wanted):
                lines.append(number)
    assert told["network"] == [10, 11, 12]
    assert told["file"] == [5, 6, 7, 8, 9]
    assert told["waits"] == [0, 1, 2, 3, 4, 12]
    assert told["all"] == list(range(len(LINES)))


def test_what_a_thread_is_in_stands_first_and_the_main_thread_ahead(calls: Calls) -> None:
    rows = calls.rows()
    assert [row.tid for row in rows] == sorted(
        (row.tid for row in rows), key=lambda t: (t != 3060, t)
    )
    inside = [(row.tid, row.call, row.on) for row in rows if row.inside]
    assert inside == [(3060, "clock_nanosleep", ""), (3116, "poll", TCP)]


def test_waits_of_threads_for_each_other_are_one_whatever_their_address(calls: Calls) -> None:
    [futex] = [row for row in calls.rows() if row.call == "futex"]
    assert (futex.tid, futex.error, futex.count, futex.on) == (3118, "ETIMEDOUT", 2, "")
    assert futex.seconds == pytest.approx(0.200088)
    assert futex.longest == pytest.approx(0.100088)


def test_a_descriptor_is_what_it_was_at_the_time_of_the_call(calls: Calls) -> None:
    read = next(row for row in calls.rows() if row.call == "read")
    assert (read.on, read.count, read.error) == ("8</data/x y>", 2, "")
    assert read.seconds == pytest.approx(0.000014)  # not what the data read like
    opened = {(row.on, row.error): row.count for row in calls.rows() if row.call == "openat"}
    assert opened == {("</data/x y>", ""): 1, ("</no>", "ENOENT"): 1}


def test_filters(calls: Calls) -> None:
    assert {row.call for row in calls.rows("network")} == {"sendto", "poll"}
    assert {row.call for row in calls.rows("file")} == {"openat", "read", "close"}


def test_the_other_end_is_named_where_it_is_known(calls: Calls) -> None:
    names = {"127.0.0.1:47662->127.0.0.1:53089": "rank 1 on vm", "pipe:[7]": "reads pid 9 (tee)"}
    text = "\n".join(table(calls, "network", names, {}))
    assert f"sendto                   {TCP} = rank 1 on vm" in text
    assert explained("5<pipe:[7]>", names) == "5<pipe:[7]> = reads pid 9 (tee)"
    assert explained("5</data/x>", names) == "5</data/x>"
    assert in_place(f"recvfrom({TCP}, 1)", names) == f"recvfrom({TCP}={{rank 1 on vm}}, 1)"
    assert in_place("read(5<pipe:[7]>, 1)", names) == "read(5<pipe:[7]>={reads pid 9 (tee)}, 1)"


def idle() -> Calls:
    """Twelve threads in futex, one that polls for a rank, one that works, the main thread waits."""
    made = Calls(100)
    for tid in range(201, 213):
        address = f"0x7f{tid}"
        made.add(
            f"[pid {tid}] 15:04:58.1 futex({address}, FUTEX_WAIT_PRIVATE, 0) = -1 EAGAIN <0.5>"
        )
        made.add(f"[pid {tid}] 15:04:58.2 futex({address}, FUTEX_WAIT_PRIVATE, 0 <unfinished ...>")
    made.add("[pid 213] 15:04:58.1 restart_syscall(<... resuming interrupted poll ...>")
    made.add(f"[pid 214] 15:04:58.1 poll([{{fd={TCP}, events=POLLIN}}], 1, 9) = 0 <0.1>")
    made.add("[pid 214] 15:04:58.3 poll([{fd=9<anon_inode:[eventfd]>}], 1, 9) = 0 <0.1>")
    made.add("[pid 215] 15:04:58.1 futex(0x1, FUTEX_WAKE_PRIVATE, 1) = 1 <0.25>")
    made.add("[pid 215] 15:04:58.2 futex(0x2, FUTEX_WAIT_PRIVATE, 1) = -1 EAGAIN (x) <0.25>")
    made.add("[pid 215] 15:04:58.3 write(4</data/x>, 1) = 1 <0.1>")
    made.add("15:04:58.4 futex(0x1, FUTEX_WAIT_PRIVATE, 0 <unfinished ...>")
    return made


def test_threads_that_only_wait_are_one_line_for_each_way() -> None:
    rows, waiting = folded(idle().rows(), 100)
    text = [one.text({}) for one in waiting]
    assert text[0] == "12 threads wait in futex: 201-212"
    assert sorted(text[1:]) == ["1 thread waits in poll on " + TCP + ": 214",
                                "1 thread waits in poll: 213"]  # fmt: skip
    told = [(row.tid, row.call, row.inside, row.count) for row in rows]
    assert told == [(100, "futex", True, 0), (215, "futex", False, 2), (215, "write", False, 1)]
    assert rows[1].seconds == pytest.approx(0.5)


def test_waits_are_shown_one_by_one_when_asked_for() -> None:
    calls = idle()
    rows, waiting = shown(calls, "waits")
    assert waiting == []
    assert {row.tid for row in rows} == {100, *range(201, 216)}
    lines = table(calls, "all", {}, {100: "python3", 215: "pt_autograd_0"})
    assert lines[0] == "thread 100 (main)"
    assert "thread 215 pt_autograd_0" in lines
    assert lines[-1].startswith("1 thread waits in poll")


def test_a_poll_whose_beginning_was_left_out_is_of_the_one_before() -> None:
    """The probe does not send each poll of a loop."""
    calls = Calls(1)
    end = "<... epoll_wait resumed>[{events=EPOLLIN}], 4, 10) = 1 <0.5>"
    for line in ("epoll_wait(6<anon_inode:[eventpoll]>,  <unfinished ...>", end, end):
        calls.add(f"[pid 2] 15:04:58.1 {line}")
    [row] = calls.rows()
    assert (row.on, row.count, row.seconds) == ("6<anon_inode:[eventpoll]>", 2, 1.0)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ("3<UNIX-STREAM:[13->14]>, 0x1, 2", "3<UNIX-STREAM:[13->14]>"),
        ("3<TCPv6:[[::1]:1->[::1]:2]>, 0x1", "3<TCPv6:[[::1]:1->[::1]:2]>"),
        ("4<pipe:[99]>, 1", "4<pipe:[99]>"),
        ("1</dev/pts/3<char 136:3>>, 1", "1</dev/pts/3<char 136:3>"),
        ("0x7f00, 1", ""),
        ("", ""),
    ],
)
def test_forms_of_descriptors(arguments: str, target: str) -> None:
    assert on("read", arguments) == target


@pytest.mark.parametrize(
    "line", ["", "[pid", "[pid 1] 00:00:00.0 ", "[pid 1] 00:00:00.0 )=(", "x" * 9999]
)
def test_nothing_that_a_node_sends_breaks_it(line: str) -> None:
    calls = Calls(1)
    calls.add(line)
    assert calls.rows() == []


def test_kinds_of_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangtop_core.tools.strace.MAX_ROWS", 3)
    calls = Calls(1)
    for fd in range(5):
        calls.add(f"[pid 1] 00:00:00.0 close({fd}</x>) = 0 <0.1>")
    assert len(calls.rows()) == 3
    assert calls.left_out == 2
