"""Reading files: all formats, and files that are damaged, foreign, twice there or hostile."""

from __future__ import annotations

import os
import pickle
import random
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hangtop_core.analysis.flight.picture import FileProblem, FlightDiagnosis, examine
from hangtop_core.dumps import pool
from hangtop_core.dumps.find import DumpFile
from hangtop_core.dumps.load import Loaded, load
from hangtop_core.dumps.pool import Reading, read
from hangtop_core.dumps.reader import decode
from hangtop_core.report.flight import entries_text, flight_text
from hangtop_probe.recorder.columns import MAX_ENTRIES
from hangtop_probe.recorder.unpickle import ForeignError, RefusedError, TruncatedError
from support.flight import Job, as_json, blamed, traces, write
from support.processes import PATIENCE, wait_until


def hung() -> Job:
    return Job(4).call("all_reduce").call("all_reduce", [0, 1, 3], done=False)


def culprits(loaded: Loaded) -> list[list[int]]:
    return [blamed(one) for one in examine(loaded.traces).diagnosis.verdicts]


def kinds(loaded: Loaded) -> dict[str, str]:
    return {os.path.basename(one.path): one.kind for one in loaded.problems}


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_both_forms_are_read(tmp_path: Path, form: str) -> None:
    loaded = load([str(write(tmp_path / "d", hung().dumps(), form=form))])
    assert [one.rank for one in loaded.traces] == [0, 1, 2, 3]
    assert (loaded.problems, culprits(loaded)) == ([], [[2]])


def test_what_was_read_is_what_was_written(tmp_path: Path) -> None:
    dumps = hung().dumps()
    (one, *_) = load([str(write(tmp_path / "d", dumps))]).traces
    (expected, *_) = traces(dumps)
    expected.source = one.source
    assert one == expected


def test_paths_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xfcn"))
    folder.mkdir()
    loaded = load([str(write(folder, hung().dumps()))])
    assert (loaded.problems, culprits(loaded)) == ([], [[2]])
    assert [os.path.dirname(one.source) for one in loaded.traces] == [str(folder)] * 4


def test_newer_pickle_protocols_and_mixed_forms(tmp_path: Path) -> None:
    dumps = hung().dumps()
    for rank, dump in dumps.items():
        data = as_json(dump) if rank == 3 else pickle.dumps(dump, protocol=rank + 3)
        (tmp_path / f"rank_{rank}").write_bytes(data)
    assert culprits(load([str(tmp_path)])) == [[2]]


def test_damaged_files_are_told_and_the_rest_is_used(tmp_path: Path) -> None:
    write(tmp_path, hung().dumps())
    for rank, data in {
        10: pickle.dumps(hung().dump(0), 2)[:-40],
        11: as_json(hung().dump(0))[:-40],
        12: b"\x80\x02\xff\xff",
        13: b"#!/bin/sh\nexit 1\n",
        14: pickle.dumps([1, 2, 3], 2),
        15: b"",
        16: pickle.dumps({"some": "thing"}, 2),
    }.items():
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_bytes(data)
    loaded = load([str(tmp_path)])
    found = {name.rpartition("_")[2]: kind for name, kind in kinds(loaded).items()}
    assert found == {
        "10": "truncated",
        "11": "truncated",
        "12": "foreign",
        "13": "foreign",
        "14": "foreign",
        "15": "empty",
        "16": "foreign",
    }
    assert culprits(loaded) == [[2]]


def test_of_two_dumps_of_a_rank_the_newer_is_used(tmp_path: Path) -> None:
    old = Job(4).call("all_reduce", done=False)
    old.entries[2][0]["time_created_ns"] -= 60_000_000_000
    write(tmp_path / "new", hung().dumps())
    write(tmp_path / "old", old.dumps([2]))
    loaded = load([str(tmp_path / "old"), str(tmp_path / "new")])
    (problem,) = loaded.problems
    assert (problem.kind, "old" in problem.path) == ("duplicate", True)
    assert culprits(loaded) == [[2]]


def test_what_an_earlier_run_has_left_is_not_used(tmp_path: Path) -> None:
    """Rank 2 wrote no dump this time; its file is of yesterday, when it was well."""
    dumps = hung().dumps()
    for entry in dumps[2]["entries"]:
        entry["time_created_ns"] -= 86_400_000_000_000
    loaded = load([str(write(tmp_path, dumps))])
    assert kinds(loaded) == {"comm_lib_trace_rank_2": "stale"}
    assert "1 d 00 h older than most" in loaded.problems[0].why
    (one,) = examine(loaded.traces).diagnosis.verdicts
    assert (blamed(one), one.confidence) == ([2], 0.6)


def test_another_version_and_a_wrong_name_are_told(tmp_path: Path) -> None:
    dumps = hung().dumps()
    dumps[1]["version"] = "2.4"
    dumps[7] = Job(4).call("all_reduce").dump(0)
    loaded = load([str(write(tmp_path, dumps))])
    assert sorted(kinds(loaded).values()) == ["misnamed", "version"]


def test_fields_of_old_versions(tmp_path: Path) -> None:
    """Before the split of numbers: one seq_id, no types, no is_p2p."""
    dumps = hung().dumps()
    for dump in dumps.values():
        dump["version"] = "2.1"
        del dump["pg_status"], dump["comm_lib_version"]
        for entry in dump["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
            for name in ("p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes", "timeout_ms"):
                del entry[name]
    assert culprits(load([str(write(tmp_path, dumps))])) == [[2]]


def test_entries_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    dumps = hung().dumps()
    dumps[0]["entries"].insert(0, "nonsense")
    dumps[0]["entries"].append({"process_group": 7, "state": [1], "record_id": 1e300})
    loaded = load([str(write(tmp_path, dumps))])
    assert "1 of its entries cannot be read" in loaded.problems[0].why
    assert [2] in culprits(loaded)


def test_torchft_replicas(tmp_path: Path) -> None:
    dumps = hung().dumps()
    shifted = {rank + 4: dump for rank, dump in dumps.items()}
    loaded = load([str(write(tmp_path, shifted))], replica_size=4)
    assert culprits(loaded) == [[6]]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/hangtop-was-here",)


PLACE = "a place to put something into"


def dump_with(part: bytes) -> bytes:
    """A whole dump whose input sizes are these opcodes."""
    dump = hung().dump(0)
    dump["entries"][0]["input_sizes"] = PLACE
    text = PLACE.encode()
    return pickle.dumps(dump, 2).replace(b"X" + struct.pack("<I", len(text)) + text, part)


def doubled(step: bytes) -> bytes:
    """Sixty steps, each of which holds the one before twice: 2 to the 60 parts in 400 bytes."""
    data = b"(K\x01K\x01" + step + b"r\x00\x10\x00\x00"
    for number in range(1, 60):
        last = b"j" + struct.pack("<I", 0x1000 + number - 1)
        data += b"0(" + last + last + step + b"r" + struct.pack("<I", 0x1000 + number)
    return data


TUPLE, LIST = b"t", b"l"
BOMBS = {
    "a memo of 34 GB": b"\x80\x02}r\xff\xff\xff\x7f.",
    "sizes nested 200,000 deep": dump_with(b"]" * 200_000 + b"a" * 199_999),
    "a key nested 500,000 deep": b"\x80\x02}K\x01" + b"\x85" * 500_000 + b"K\x01s.",
    "text that doubles": dump_with(doubled(LIST)),
    "deep JSON": b'{"version":' + b"[" * 100_000,
}
ENDLESS = b"\x80\x02}" + doubled(TUPLE) + b"K\x01s."
"""A key whose hash visits 2 to the 60 parts."""
REFUSED = {
    "a class": pickle.dumps(Evil(), 2),
    "a class, protocol 4": pickle.dumps({"version": Evil()}, 4),
    "builtins": b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x001+1\x85R.",
    "a persistent id": b"\x80\x02X\x01\x00\x00\x00aQ.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_are_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="refused"):
        decode(REFUSED[name])


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x8e" + struct.pack("<Q", 10 << 30) + b"abc",
        b"\x80\x04\x95" + struct.pack("<Q", 10 << 30) + b"}.",
        b"\x80\x04\x8d" + struct.pack("<Q", 10 << 30) + b"abc",
        b"\x80\x05\x96" + struct.pack("<Q", 10 << 30) + b"abc",
        b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF) + b"abc",
    ],
)
def test_claims_of_ten_gigabytes_in_a_short_file(tmp_path: Path, data: bytes) -> None:
    assert_refused(tmp_path, data)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    (problem,) = assert_refused(tmp_path, BOMBS[name], limit_s=1.5).problems
    assert problem.kind == "refused", problem


def test_a_key_whose_hash_never_ends_is_given_up(tmp_path: Path) -> None:
    (problem,) = assert_refused(tmp_path, ENDLESS, limit_s=1.0).problems
    # Python 3.14 visits each tuple once: it remembers their hashes.
    remembers = sys.version_info >= (3, 14)
    assert ("none of the keys" if remembers else "takes far too long") in problem.why


def test_files_with_wrong_bytes_never_break_the_reading(tmp_path: Path) -> None:
    """Three hundred dumps, each with some bytes changed: a trace or a problem, nothing else."""
    rng = random.Random(4)
    whole = {"p": pickle.dumps(hung().dump(0), 2), "j": as_json(hung().dump(0))}
    files = []
    for number in range(300):
        data = bytearray(whole["pj"[number % 2]])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        path = tmp_path / f"rank_{number}"
        path.write_bytes(data)
        files.append(DumpFile(str(path), number, len(data), 0.0, True))
    reading = read(files, limit_s=5.0)
    assert len(reading.traces) + len(reading.problems) == 300
    assert len(reading.traces) > 10
    picture = examine(reading.traces)
    assert picture.diagnosis.flight.entries > 10
    shown = flight_text(picture.diagnosis, 80) + "\n".join(entries_text(picture, 80, stacks=True))
    assert {char for char in shown if not char.isprintable()} <= {"\n"}


def test_an_interrupt_ends_the_command_and_its_readers(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(ENDLESS)
    command = [sys.executable, "-m", "hangtop", "flight", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        reader = f"/proc/{process.pid}/task/{process.pid}/children"
        assert wait_until(lambda: Path(reader).read_text().split())
        child = int(Path(reader).read_text().split()[0])
        assert wait_until(lambda: b"dumps.reader" in cmdline(child))
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, said) == (130, "")
    assert wait_until(lambda: cmdline(child) == b"")


def cmdline(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def assert_refused(tmp_path: Path, data: bytes, limit_s: float = 20.0) -> Reading:
    """A bad file and a good one: the bad one is a problem, the good one is read."""
    write(tmp_path, hung().dumps([1]), "rank_")
    (tmp_path / "rank_0").write_bytes(data)
    files = [DumpFile(str(tmp_path / f"rank_{n}"), n, len(data), 0.0, True) for n in (0, 1)]
    reading = read(files, limit_s=limit_s)
    assert [one.rank for one in reading.traces] == [1]
    (problem,) = reading.problems
    assert problem.kind in ("refused", "truncated", "foreign"), problem
    assert not os.path.exists("/tmp/hangtop-was-here")
    return reading


def test_an_answer_that_is_larger_than_any_is_refused_before_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = (
        "import sys; sys.path[:] = {path!r}; from hangtop_core.dumps import pool, wire;"
        "say = lambda data: (sys.stdout.buffer.write(data), sys.stdout.buffer.flush());"
        "say(wire.frame(wire.Answer())); wire.receive(sys.stdin.buffer);"
        "say(wire.LENGTH.pack(pool.MAX_ANSWER)); sys.stdin.buffer.read()"
    )
    monkeypatch.setattr(pool, "_CODE", says)
    path = write(tmp_path / "d", hung().dumps([0])) / "rank_0"
    (problem,) = read([DumpFile(str(path), 0, 1, 0.0, True)]).problems
    assert problem.kind == "refused"
    assert problem.why == "refused: what was read of it has over 512 MiB"


def test_entries_without_end_are_cut(tmp_path: Path) -> None:
    """One entry, repeated by reference: the newest ones are read."""
    dump = hung().dump(0)
    del dump["pg_status"], dump["pg_config"]
    dump["entries"] = [dump["entries"][0]] * (MAX_ENTRIES + 1000)
    (tmp_path / "rank_0").write_bytes(pickle.dumps(dump, 2))
    (one,) = load([str(tmp_path)]).traces
    assert (one.length, one.wrapped) == (MAX_ENTRIES, True)


def test_truncated_and_foreign_bytes() -> None:
    with pytest.raises(TruncatedError):
        decode(pickle.dumps({"version": "2.10"}, 2)[:-3])
    with pytest.raises(ForeignError):
        decode(b"hello")


def spoil(path: Path, how: str) -> None:
    """Make a dump one that cannot be read."""
    whole = path.read_bytes()
    path.unlink()
    if how == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "in a text":
        path.write_bytes(b'{"version": "2.10", "entries": [{"collective_se\n')
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "refused":
        path.write_bytes(pickle.dumps({"version": "2.10", "entries": [os.getcwd]}))
    elif how == "another format":
        path.write_bytes(pickle.dumps({"release": 7, "operations": []}))
    elif how == "too large":
        path.touch()
        os.truncate(path, 257 << 20)
    elif how == "folder":
        path.mkdir()
    elif how == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(path.with_name("gone"))


SPOILED = {
    "cut off": "truncated",
    "in a text": "truncated",
    "empty": "empty",
    "refused": "refused",
    "another format": "foreign",
    "too large": "too-large",
    "folder": "foreign",
    "FIFO": "foreign",
    "lost link": "unreadable",
}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("how", SPOILED)
def test_a_dump_that_cannot_be_read_is_no_missing_dump(
    tmp_path: Path, how: str, backend: str
) -> None:
    job = Job(4, backend=backend).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    folder = write(tmp_path / "d", job.dumps(), "trace-gpu1-rank_")
    (folder / "rank2.log").write_text("step 1")
    (folder / "README").write_text("of last night")
    spoil(folder / "trace-gpu1-rank_3", how)
    loaded = load([str(folder)])
    listed = {one.rank: one.kind for one in loaded.problems if one.rank is not None}
    assert listed == {3: SPOILED[how]}
    seen = judged(loaded)
    assert (seen.state, seen.verdicts) == ("hung", ())
    assert (seen.flight.absent, seen.flight.unreadable) == ((3,), (3,))
    [spot] = [one for one in seen.blind_spots if one.ranks == (3,)]
    assert (spot.what, bool(spot.fix)) == ("flight recorder", True)
    text = flight_text(seen, 100)
    assert "No cause could be told: the recorder of rank 3 cannot be read." in text
    assert "unreadable: 3" in text


def test_a_rank_that_left_no_dump_is_told_from_one_that_did(tmp_path: Path) -> None:
    job = Job(8).call("all_reduce").call("all_reduce", range(6), done=False)
    folder = write(tmp_path / "d", job.dumps())
    files = sorted(folder.iterdir())
    files[6].unlink()
    files[7].write_bytes(b"")
    seen = judged(load([str(folder)]))
    assert [blamed(one) for one in seen.verdicts] == [[6]]
    assert seen.flight.unreadable == (7,)


@pytest.mark.parametrize("ending", [".gz", ".tmp", "~"])
def test_a_dump_that_is_packed_or_not_whole_is_no_missing_one(tmp_path: Path, ending: str) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    folder = write(tmp_path / "d", job.dumps(), "rank_")
    (folder / "rank_3").rename(folder / f"rank_3{ending}")
    (folder / f"rank_3{ending}").write_bytes(b"\x1f\x8b packed")
    seen = judged(load([str(folder)]))
    assert (seen.verdicts, seen.flight.unreadable) == ((), (3,))


def test_what_lies_beside_dumps_is_nobodys_dump(tmp_path: Path) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    folder = write(tmp_path / "d", job.dumps())
    next(one for one in folder.iterdir() if one.name.endswith("3")).unlink()
    for name in ("rank3.log", "stderr-rank_3.txt", "core.rank3.py"):
        (folder / name).write_text("no dump")
    (folder / "node3").mkdir()
    seen = judged(load([str(folder)]))
    assert [blamed(one) for one in seen.verdicts] == [[3]]
    assert seen.flight.unreadable == ()


def test_a_rank_whose_last_entries_are_damaged_is_not_said_to_lack(tmp_path: Path) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    dumps = job.dumps()
    dumps[2]["entries"][-1] = "damaged"
    seen = judged(load([str(write(tmp_path / "d", dumps))]))
    [waiting] = seen.flight.groups[0].waiting
    assert (waiting.missing, waiting.unsure) == ((), (2,))
    assert not [one for one in seen.verdicts if blamed(one)]


def test_the_folder_of_a_prepared_run_is_that_of_its_dumps(tmp_path: Path) -> None:
    write(tmp_path / "flight", hung().dumps())
    (tmp_path / "hook" / "hangtop_hook").mkdir(parents=True)
    (tmp_path / "hook" / "hangtop_hook" / "names.py").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0-gpu1.log").write_text("step 1")
    loaded = load([str(tmp_path)])
    assert ([one.rank for one in loaded.traces], loaded.problems) == ([0, 1, 2, 3], [])


def test_a_folder_that_may_not_be_listed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    folder = write(tmp_path / "d", job.dumps())
    next(one for one in folder.iterdir() if one.name.endswith("3")).unlink()
    closed = folder / "gpu2"
    closed.mkdir()
    (closed / "rank_9").touch()

    def scandir(path: str) -> os._ScandirIterator[str]:
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return listing(path)

    listing = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(closed))
    loaded = load([str(folder)])
    [problem] = loaded.problems
    assert (problem.path, problem.kind, problem.rank) == (str(closed), "unreadable", None)
    assert judged(loaded).verdicts == (), "the dump of rank 3 may be in there"


def judged(loaded: Loaded) -> FlightDiagnosis:
    """What is concluded, as `hangtop flight` does."""
    problems = [FileProblem(one.path, one.kind, one.why, one.rank) for one in loaded.problems]
    return examine(loaded.traces, problems, loaded.files).diagnosis


def ended(dump: dict[str, object], how: str, why: str = "") -> None:
    """Let a dump be one that the hook of `hangtop run` wrote at the end of its rank."""
    dump["hangtop"] = {"ended": how, "why": why}


@pytest.mark.parametrize("how", ["finished", "exception"])
def test_a_rank_that_ended_is_who_the_others_waited_for(tmp_path: Path, how: str) -> None:
    """gloo says of an operation that failed that it is over; and of the last one not yet."""
    job = Job(4, backend="gloo").call("all_reduce").call("barrier", [0, 1, 2])
    dumps = job.dumps()
    dumps[3]["entries"][-1]["retired"] = False
    for status in dumps[3]["pg_status"].values():
        status["last_completed_collective"] = -1
    for rank in range(3):
        ended(dumps[rank], "collective", "RuntimeError: gloo/pair.cc: closed by peer")
    ended(dumps[3], how, "ValueError: bad \x1b[31mbatch" * (how == "exception"))
    seen = judged(load([str(write(tmp_path / "d", dumps, "ended_rank_"))]))
    [verdict] = seen.verdicts
    assert (blamed(verdict), verdict.victims) == ([3], (0, 1, 2))
    word = "finished without an exception" if how == "finished" else "ended by ValueError: bad"
    assert verdict.summary.startswith(f"rank 3 {word}")
    assert "ranks 0-2 waited for it in barrier #2" in verdict.summary
    assert "\x1b" not in flight_text(seen, 100)
    assert flight_text(seen, 100).startswith("ENDED while ranks waited: dumps of 4 of 4 ranks")
    assert not [step for step in verdict.next_steps if "take the stack" in step]
    assert [(one.ranks, one.how) for one in seen.flight.ended] == [
        ((0, 1, 2), "collective"), ((3,), how),
    ]  # fmt: skip


def test_ranks_that_all_finished_waited_for_nobody(tmp_path: Path) -> None:
    dumps = Job(2, backend="gloo").call("all_reduce").call("all_reduce", done=False).dumps()
    for dump in dumps.values():
        ended(dump, "finished")
    seen = judged(load([str(write(tmp_path / "d", dumps))]))
    assert (seen.state, seen.verdicts) == ("unknown", ())
    assert "Ended\n  0-1: without an exception\n" in flight_text(seen, 100)


def test_what_has_a_root_may_be_over_before_all_have_joined(tmp_path: Path) -> None:
    dumps = Job(2, backend="gloo").call("all_reduce").call("broadcast", [0]).dumps()
    for dump in dumps.values():
        ended(dump, "finished")
    assert judged(load([str(write(tmp_path / "d", dumps))])).verdicts == ()


def test_what_nccl_says_is_over_stays_over(tmp_path: Path) -> None:
    dumps = Job(2).call("all_reduce").call("all_reduce", [0]).dumps()
    for dump in dumps.values():
        ended(dump, "finished")
    assert judged(load([str(write(tmp_path / "d", dumps))])).verdicts == ()
