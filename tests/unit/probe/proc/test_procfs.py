"""Files of /proc, as Linux writes them and as it may."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from hangtop_probe.descriptors import descriptors, locks
from hangtop_probe.files import filesystems
from hangtop_probe.net import sockets
from hangtop_probe.proc import activity, procfs, syscalls
from hangtop_probe.table import facts

STAT = (
    b"4711 (py (thon) 3) S 4700 4711 4690 0 -1 4194304 30011 0 7 0 105 22 0 0 20 0 6 0 209981 "
    b"1866485760 57632 18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 1 0 0 0 0 0 0 0 0 "
    b"0 0 0 0 9"
)
SCHED = b"""python (10925, #threads: 6)
-------------------------------------------------------------------
se.exec_start                                :       2103629.120439
se.sum_exec_runtime                          :          1075.419078
nr_switches                                  :                   60
nr_voluntary_switches                        :                   53
"""
MOUNTINFO = b"""24 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 24 0:45 / /mnt/my\\040data rw - nfs4 filer:/export/a rw,vers=4.2
32 24 0:46 / /scratch rw master:5 - lustre 10.0.0.1@tcp:/scratch rw
"""


def test_stat_with_blanks_and_brackets_in_the_name() -> None:
    stat = procfs.parse_stat(STAT)
    assert stat is not None
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (4711, "py (thon) 3", "S", 4700)
    assert (stat.cpu_ticks, stat.threads, stat.start) == (127, 6, 209981)
    assert stat.rss == 57632 * procfs.PAGE_SIZE
    assert procfs.wait_status(stat.exit_status) == -9
    assert not stat.kernel


@pytest.mark.parametrize(("status", "code"), [(0, 0), (256, 1), (3 << 8, 3), (9, -9), (139, -11)])
def test_wait_status(status: int, code: int) -> None:
    assert procfs.wait_status(status) == code


def test_the_one_child_that_is_waited_for_is_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        waiting = threading.Thread(target=child.wait)
        waiting.start()
        try:
            tid = waiting.native_id or 0
            seen = (activity.read_thread(f"/proc/self/task/{tid}", tid) for _ in range(100_000))
            row = next(one for one in seen if one is not None and one.syscall == "wait4")
            assert (row.futex, row.fd) == (str(child.pid), None)
        finally:
            child.kill()
            waiting.join()


def test_syscall_line_gives_name_descriptor_and_futex() -> None:
    call = procfs.parse_syscall(b"0 0xd 0x7ffe 0x1 0x0 0x0 0x0 0x7ffb31148b60 0x7ffb312312ad\n")
    assert call is not None
    assert syscalls.name(call.number, "x86_64") == "read"
    assert call.args[0] == 13
    assert procfs.parse_syscall(b"running\n") is None
    assert procfs.parse_syscall(b"-1 0x7ffe 0x7ffb\n") is None


@pytest.mark.parametrize(
    ("machine", "number", "name"),
    [
        ("x86_64", 202, "futex"),
        ("x86_64", 73, "flock"),
        ("x86_64", 334, "rseq"),
        ("x86_64", 449, "futex_waitv"),
        ("aarch64", 98, "futex"),
        ("aarch64", 63, "read"),
        ("aarch64", 32, "flock"),
        ("aarch64", 260, "wait4"),
        ("aarch64", 437, "openat2"),
        ("aarch64", 250, "syscall 250"),
        ("riscv64", 98, "syscall 98"),
    ],
)
def test_syscall_names(machine: str, number: int, name: str) -> None:
    assert syscalls.name(number, machine) == name


def test_x86_numbers_are_those_of_the_system_header() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel header on this machine")
    for line in header.read_text().splitlines():
        if line.startswith("#define __NR_"):
            name, number = line.removeprefix("#define __NR_").split()
            assert syscalls.name(int(number), "x86_64") == name


def test_sched_gives_when_it_last_ran() -> None:
    assert procfs.parse_exec_start(SCHED) == pytest.approx(2103629.120439)
    assert procfs.parse_int(procfs.parse_pairs(SCHED)["nr_voluntary_switches"]) == 53
    assert procfs.parse_exec_start(b"") is None
    moved = SCHED.replace(b"2103629.120439", b"0.000000")  # as after a migration while it waits
    assert procfs.parse_exec_start(moved) is None


def test_one_value_of_a_file() -> None:
    assert procfs.value_of(b"rchar: 12\nwchar: 34\n", b"rchar") == 12
    assert procfs.value_of(b"rchar: 12\nwchar: 34\n", b"wchar") == 34
    assert procfs.value_of(b"Name:\tx\nTracerPid:\t77", b"TracerPid") == 77
    assert procfs.value_of(SCHED, b"nr_voluntary_switches") == 53
    assert procfs.value_of(SCHED, b"nr_involuntary") is None
    assert procfs.value_of(b"", b"x") is None


def test_environment_command_line_and_limits() -> None:
    assert procfs.parse_environ(b"RANK=1\0A=b=c\0junk\0\0") == {"RANK": "1", "A": "b=c"}
    assert procfs.parse_cmdline(b"python\0-c\0\0") == ("python", "-c")
    assert procfs.parse_cmdline(b"") == ()
    limits = procfs.parse_limits(
        b"Limit                     Soft Limit           Hard Limit           Units     \n"
        b"Max core file size        0                    unlimited            bytes     \n"
        b"Max locked memory         unlimited            unlimited            bytes     \n"
    )
    assert limits == {"Max core file size": 0, "Max locked memory": None}


def test_cgroups_of_both_versions() -> None:
    groups = procfs.parse_cgroup(b"4:memory,cpu:/job/7\n0::/slurm/uid:0/x\n")
    assert groups == {"memory": "/job/7", "cpu": "/job/7", "": "/slurm/uid:0/x"}


def test_mountinfo_with_blanks_and_optional_fields() -> None:
    mounts = procfs.parse_mountinfo(MOUNTINFO)
    assert [(m.id, m.device, m.point, m.fstype, m.source) for m in mounts] == [
        (24, "254:0", "/", "ext4", "/dev/vda"),
        (31, "0:45", "/mnt/my data", "nfs4", "filer:/export/a"),
        (32, "0:46", "/scratch", "lustre", "10.0.0.1@tcp:/scratch"),
    ]


def test_locks_with_a_waiter() -> None:
    found = locks.parse_locks(
        b"1: FLOCK  ADVISORY  WRITE 1234 fe:00:4711 0 EOF\n"
        b"1: -> FLOCK  ADVISORY  WRITE 1235 fe:00:4711 0 EOF\n"
        b"2: OFDLCK ADVISORY  READ -1 08:01:5 0 EOF\n"
    )
    assert [(lock.pid, lock.waiting, lock.file) for lock in found] == [
        (1234, False, ("254:0", 4711)),
        (1235, True, ("254:0", 4711)),
        (-1, False, ("8:1", 5)),
    ]
    assert locks.holders(found) == {1: [1234], 2: [-1]}


def test_tcp_lines_of_both_families() -> None:
    header = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when ...\n"
    line = (
        b"   0: 0100007F:A199 0200000A:01BB 01 00000010:00000060 00:00000000 00000000 0 0 49885 1"
    )
    [entry] = sockets.parse_inet(header + line, "tcp")
    assert (entry.local, entry.remote, entry.state) == (
        "127.0.0.1:41369",
        "10.0.0.2:443",
        "ESTABLISHED",
    )
    assert (entry.recv_queue, entry.send_queue, entry.inode) == (96, 16, 49885)
    # The end that has come, and was not read, is no byte.
    for count, told in ((b"60", 95), (b"01", 0), (b"00", 0)):
        closed = line.replace(b" 01 ", b" 08 ").replace(b":00000060", b":000000" + count)
        [entry] = sockets.parse_inet(header + closed, "tcp")
        assert (entry.state, entry.recv_queue) == ("CLOSE_WAIT", told)
    mapped = b"0000000000000000FFFF00000100007F:0016"
    six = b"0: " + mapped + b" 00000000000000000000000001000000:0050 0A 0:0 0:0 0 0 0 7"
    [entry] = sockets.parse_inet(header + six, "tcp")
    assert (entry.local, entry.remote, entry.state) == ("127.0.0.1:22", "[::1]:80", "LISTEN")


def test_unix_sockets() -> None:
    data = (
        b"Num RefCount Protocol Flags Type St Inode Path\n"
        b"00000000b6cf67dc: 00000002 00000000 00010000 0001 01 52000 /tmp/a b.sock\n"
        b"000000003941ee0d: 00000003 00000000 00000000 0001 03   512\n"
    )
    listening, connected = sockets.parse_unix(data)
    assert (listening.local, listening.state, listening.inode) == ("/tmp/a b.sock", "LISTEN", 52000)
    assert (connected.local, connected.state) == ("", "CONNECTED")


def test_fdinfo() -> None:
    info = descriptors.parse_info(
        b"pos:\t4096\nflags:\t0100002\nmnt_id:\t24\nino:\t7\n"
        b"lock:\t1: FLOCK  ADVISORY  WRITE 1234 fe:00:7 0 EOF\n"
    )
    assert (info.mode, info.position, info.mount, info.inode) == ("rw", 4096, 24, 7)
    assert [lock.pid for lock in info.locks] == [1234]
    assert descriptors.parse_info(b"").mode == "?"


@pytest.mark.parametrize(
    ("source", "server"),
    [
        ("filer:/export/a", "filer"),
        ("[fd00::1]:/x", "[fd00::1]"),
        ("//smb/share", "smb"),
        ("user@host:/home", "host"),
        ("10.0.0.1@tcp:/scratch", "10.0.0.1@tcp"),
        ("beegfs_nodev", None),
    ],
)
def test_server_names(source: str, server: str | None) -> None:
    assert filesystems.server_name(source) == server


def test_readers_answer_none_for_what_is_not_there() -> None:
    assert procfs.read("/proc/0/stat") is None
    assert procfs.read_stat(2**22 + 5) is None
    assert procfs.link("/proc/0/exe") is None
    assert procfs.numbers("/proc/0/task") == []
    assert procfs.states(2**22 + 5) == {}
    assert activity.read_thread("/proc/0/task/0", 0) is None


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 300_000)
    assert len(procfs.read(str(path)) or b"") == 300_000
    assert len(procfs.read(str(path), 1000) or b"") == 1000
    assert len(procfs.read_all(str(path)) or b"") == 300_000


def test_numbers_that_a_process_was_told() -> None:
    told = ["0", "7", "999999999", "", "-1", "1.0", "9" * 10, "9" * 6000, "\u0663", "\u00b2", " 7"]
    assert [procfs.decimal(text) for text in told] == [0, 7, 999999999, *[None] * 8]


def test_descriptors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The listing itself is one more descriptor.
    listed = len(os.listdir("/proc/self/fd")) - 1
    assert facts.descriptor_count("/proc/self/fd") in (listed, listed + 1)
    assert facts.descriptor_count("/proc/0/fd") is None
    # As before Linux 6.2, where the directory has no size.
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((0,) * 10))
    for name in range(20):
        (tmp_path / str(name)).touch()
    assert facts.descriptor_count(str(tmp_path)) == 20
    monkeypatch.setattr(facts, "_MAX_LISTED", 19)
    assert facts.descriptor_count(str(tmp_path)) is None


def test_namespaces_are_told_by_their_inode() -> None:
    assert procfs.namespace("self", "pid") == os.stat("/proc/self/ns/pid").st_ino
    assert procfs.namespace("self", "nothing") is None
    assert procfs.namespace(str(2**22 + 7), "net") is None


@pytest.mark.parametrize(
    ("status", "is_to_stop"),
    [
        ("SigPnd:\t0000000000000000\nShdPnd:\t0000000000040000\n", True),  # by kill
        ("SigPnd:\t0000000000040001\nShdPnd:\t0000000000000000\n", True),  # by a tracer
        ("SigPnd:\t0000000000000000\nShdPnd:\t0000000000020002\n", False),
        ("SigPnd:\tx\n", False),
    ],
)
def test_a_stop_that_has_not_come_yet(tmp_path: Path, status: str, is_to_stop: bool) -> None:
    for tid, text in ((7, "SigPnd:\t0000000000000000\n"), (8, status)):
        (tmp_path / f"7/task/{tid}").mkdir(parents=True)
        (tmp_path / f"7/task/{tid}/status").write_text(text)
    assert procfs.is_to_stop(7, str(tmp_path)) is is_to_stop
    assert not procfs.is_to_stop(9, str(tmp_path))
