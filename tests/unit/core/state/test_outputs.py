"""Log files of jobs: what is kept of them, when they are read, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.attach.wire.reports import LogPiece
from hangtop_core.diagnosis import Diagnosis
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.meaning.lacking import lacking
from hangtop_core.logs.reading.of_jobs import of_job, outputs_of
from hangtop_core.model.snapshot import Failure, Job, Process, Rank, Snapshot
from hangtop_core.state.outputs import AGAIN, KEPT, Outputs, wanted

if TYPE_CHECKING:
    import pytest


def piece(text: str | None, **more: Any) -> LogPiece:
    fields: dict[str, Any] = {"at": 100.0, "path": "/logs/0.log", "pid": 10, "inode": "1:2"}
    start = more.get("start", 0)
    fields["size"] = start + len((text or "").encode())
    return LogPiece(**{**fields, "text": text, **more})


def process(pid: int, outputs: tuple[str, ...], **more: Any) -> Process:
    fields: dict[str, Any] = {"role": "rank", "label": "rank", "state": "S", "node": "n1"}
    fields.update(pid=pid, ppid=1, start=pid, started_at=1.0, outputs=outputs)
    return Process(**{**fields, **more})


def job(*ranks: Process, launchers: tuple[Process, ...] = ()) -> Job:
    made = tuple(Rank(number, "n1", "running", one) for number, one in enumerate(ranks))
    return Job("job", "job", "torchrun", None, len(ranks), None, made, launchers, nodes=("n1",))


def diagnosis(state: str, observed: float = 60.0) -> dict[str, Diagnosis]:
    made = Diagnosis("s", "0", "t", observed, state, None, None, None)  # type: ignore[arg-type]
    return {"job": made}


def test_what_is_new_is_added_to_what_was_read() -> None:
    outputs = Outputs()
    outputs.fold("n1", piece("one\ntw"), 0.0)
    assert outputs.since("n1") == {"1:2": 6}
    outputs.fold("n1", piece("o\n", start=6), 0.0)
    (one,) = outputs.read()
    assert (one.text, one.size, one.log.lines) == ("one\ntwo\n", 8, 2)
    outputs.fold("n1", piece("new\n", cut=True), 0.0)
    assert outputs.read()[0].text == "new\n"


def test_an_answer_that_was_overtaken_does_not_take_away_what_was_read() -> None:
    outputs = Outputs()
    outputs.fold("n1", piece("error\n"), 0.0)
    outputs.fold("n1", piece("step 1\n", start=6), 0.0)
    outputs.fold("n1", piece("step 1\nste", start=6), 0.0)
    assert outputs.since("n1") == {"1:2": 13}
    outputs.fold("n1", piece("step 2\n", start=13), 0.0)
    assert outputs.read()[0].text == "error\nstep 1\nstep 2\n"


def test_a_gap_begins_anew_and_long_texts_lose_their_beginning() -> None:
    outputs = Outputs()
    outputs.fold("n1", piece("one\n"), 0.0)
    outputs.fold("n1", piece("half\nlater\n", start=5000), 0.0)
    (one,) = outputs.read()
    assert (one.start, one.text, one.log.lines) == (5000, "half\nlater\n", 1)
    outputs.fold("n1", piece("x\n" * KEPT, start=one.size), 0.0)
    assert len(outputs.read()[0].text) == KEPT


def test_a_file_that_cannot_be_read_says_why() -> None:
    outputs = Outputs()
    failed = piece(
        None, inode=None, failure=Failure("timeout", "its file system: no answer in 3 s")
    )
    outputs.fold("n1", failed, 0.0)
    one = job(process(10, ("/logs/0.log", "/logs/0.log")))
    (lack,) = lacking(one, outputs.read())
    assert (lack.ranks, lack.why) == ((0,), "/logs/0.log: its file system: no answer in 3 s")


def test_a_file_of_one_rank_is_that_ranks_and_that_of_a_launcher_nobodys() -> None:
    outputs = Outputs()
    launcher = process(5, ("/logs/all.log",), role="launcher")
    some = job(
        process(10, ("/logs/a.log", "/logs/a.log")),
        process(11, ("/logs/all.log", "/logs/all.log")),
        launchers=(launcher,),
    )
    outputs.fold("n1", piece("a\n", path="/logs/a.log"), 0.0)
    outputs.fold("n1", piece("b\n", path="/logs/all.log", pid=11, inode="1:3"), 0.0)
    outputs.fold("n1", piece("c\n", path="/logs/other.log", pid=99, inode="1:4"), 0.0)
    assert [one.place.rank for one in of_job(outputs.read(), some)] == [0, None]
    assert [one.path for one in outputs_of(outputs.read(), some)] == [
        "/logs/a.log",
        "/logs/all.log",
    ]
    # It holds what all of its node print.
    assert lacking(some, outputs.read()) == []


QUOTE = "[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 1\n"


def test_what_a_rank_prints_to_a_file_of_its_own_is_of_that_rank() -> None:
    outputs = Outputs()
    outputs.fold("n1", piece(QUOTE, pid=11, inode="1:3", path="/logs/1"), 0.0)
    made = job(process(10, ("/logs/0",)), process(11, ("/logs/1", "/logs/1")))
    (record,) = judge(of_job(outputs.read(), made)).notes
    assert (record.ranks, record.record.code) == ((1,), "quote")
    # Of rank 2, which left before anybody looked, that may have been the file as well.
    text = QUOTE.replace("rank0", "rank2")
    outputs.fold("n1", piece(text, pid=11, inode="1:4", path="/logs/all"), 0.0)
    made = job(process(10, ("/logs/0",)), process(11, ("/logs/all", "/logs/all")))
    made = msgspec.structs.replace(made, world_size=3)
    first = judge(of_job(outputs.read(), made)).first
    assert first is not None
    assert first.ranks == (2,)


def test_local_ranks_in_what_a_launcher_prints_are_those_of_its_node() -> None:
    outputs = Outputs()
    launcher = process(9, ("/logs/out", "/logs/out"), role="launcher", label="torchrun")
    text = "[default1]:KeyError here\n[default0]:x\n"
    outputs.fold("n1", piece(text, pid=9, path="/logs/out"), 0.0)
    ranks = [process(10 + n, ("pipe:[1]",), env={"LOCAL_RANK": str(n)}) for n in (0, 1)]
    made = job(*ranks, launchers=(launcher,))
    made = msgspec.structs.replace(
        made, ranks=tuple(msgspec.structs.replace(r, rank=r.rank + 4) for r in made.ranks)
    )
    assert judge(of_job(outputs.read(), made)).last[5][0] == "KeyError here"


def test_the_file_of_a_rank_that_left_is_known_by_its_path() -> None:
    left = process(10, ("/logs/0.log", "/logs/0.log"), gone_at=50.0)
    some = job(left, process(11, ("/dev/pts/3", "/dev/pts/3")))
    (one,) = wanted(some)
    assert (one.pids, one.paths) == ((11,), ("/logs/0.log",))
    outputs = Outputs()
    outputs.fold("n1", piece("x\n", pid=None), 0.0)
    assert [one.place.rank for one in of_job(outputs.read(), some)] == [0]
    (lack,) = lacking(some, outputs.read())
    assert (lack.ranks, lack.why) == ((1,), "prints to a terminal")


def test_logs_are_read_when_a_job_stalls_and_not_before() -> None:
    outputs = Outputs()
    snapshot = Snapshot(at=100.0, observed_since=1.0, tick=1, jobs=(job(process(10, ())),))
    assert outputs.due(snapshot, diagnosis("progressing"), 100.0) == []
    assert outputs.due(snapshot, diagnosis("unknown", 1.0), 100.0) == []
    assert len(outputs.due(snapshot, diagnosis("unknown", 6.0), 100.0)) == 1
    assert outputs.due(snapshot, diagnosis("hung", 9.0), 103.0) == []
    assert len(outputs.due(snapshot, diagnosis("hung", 20.0), 101.0 + AGAIN)) == 1


def test_logs_are_read_once_of_a_job_that_gets_on_without_all_that_were_started() -> None:
    outputs = Outputs()
    for size, read in (("1", 0), ("2", 1)):
        made = job(process(10, (), env={"LOCAL_WORLD_SIZE": size}))
        made = msgspec.structs.replace(made, world_size=2)
        snapshot = Snapshot(at=100.0, observed_since=1.0, tick=1, jobs=(made,))
        assert outputs.due(snapshot, diagnosis("progressing", 1.0), 100.0) == []
        assert len(outputs.due(snapshot, diagnosis("progressing", 6.0), 100.0)) == read
    assert outputs.due(snapshot, diagnosis("progressing", 60.0), 101.0 + AGAIN) == []


def test_of_a_large_job_those_are_read_that_say_most() -> None:
    launcher = process(9, ("/logs/all.log",), role="launcher")
    ranks = [process(10 + number, (f"/logs/{number}.log",)) for number in range(6)]
    ranks[4] = msgspec.structs.replace(ranks[4], gone_at=50.0)
    (one,) = wanted(job(*ranks, launchers=(launcher,)), 4, {3})
    assert (one.pids, one.paths) == ((9, 13, 10), ("/logs/4.log",))
    (all_of_them,) = wanted(job(*ranks, launchers=(launcher,)))
    assert sorted(all_of_them.pids) == [9, 10, 11, 12, 13, 15]


def test_logs_are_read_when_a_rank_has_left() -> None:
    outputs = Outputs()
    alive = process(10, ("/logs/0.log",))
    before = Snapshot(at=100.0, observed_since=1.0, tick=1, jobs=(job(alive),))
    assert outputs.due(before, diagnosis("progressing"), 100.0) == []
    gone = msgspec.structs.replace(alive, gone_at=101.0)
    after = msgspec.structs.replace(before, jobs=(job(gone),))
    (one,) = outputs.due(after, diagnosis("progressing"), 101.0)
    assert one.paths == ("/logs/0.log",)
    assert outputs.due(after, diagnosis("progressing"), 102.0) == []


def test_what_was_read_can_be_kept_in_a_file() -> None:
    outputs = Outputs()
    outputs.fold("n1", piece("[default1]:[rank1]: x\n[default1]:ERROR: y\n"), 0.0)
    snapshot = Snapshot(at=1.0, observed_since=1.0, tick=1, outputs=outputs.read())
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


def test_text_is_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangtop_core.state.outputs.KEPT_ALL", 4000)
    outputs = Outputs()
    for number in range(6):
        outputs.fold("n1", piece("x" * 1000, inode=f"1:{number}", path=f"/{number}"), 0.0)
    assert [bool(one.text) for one in outputs.read()] == [False, False, True, True, True, True]


def test_files_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangtop_core.state.outputs.FILES", 2)
    outputs = Outputs()
    for number in (1, 2, 1, 3):
        outputs.fold("n1", piece("x", inode=f"1:{number}", path=f"/{number}"), 0.0)
    assert [one.path for one in outputs.read()] == ["/1", "/3"]


def test_the_log_of_a_rank_that_is_not_there_is_looked_for_beside_those_of_others() -> None:
    # GIVEN two of three ranks, each with a file of its own
    some = msgspec.structs.replace(
        job(process(10, ("/logs/run7/worker-00.txt",)), process(11, ("/logs/run7/worker-01.txt",))),
        world_size=3,
    )
    (one,) = wanted(some)
    assert one.paths == ("/logs/run7/worker-02.txt",)
    outputs = Outputs()
    told = {"path": "/logs/run7/worker-02.txt", "pid": None}
    outputs.fold("n1", piece("KeyError: 1\n", changed=90.0, **told), 0.0)
    assert [one.place.rank for one in of_job(outputs.read(), some)] == [2]
    # THEN not one of before this run, nor one that is not there
    old = Outputs()
    old.fold("n1", piece("x\n", changed=0.5, **told), 0.0)
    failed = Failure("denied", "No such file or directory")
    old.fold("n1", piece(None, inode=None, failure=failed, **told), 0.0)
    assert of_job(old.read(), some) == []
    # AND nothing is looked for where all are there, or files are shared
    assert wanted(msgspec.structs.replace(some, world_size=2))[0].paths == ()
    shared = job(process(10, ("/logs/all.log",)), process(11, ("/logs/all.log",)))
    assert wanted(msgspec.structs.replace(shared, world_size=3))[0].paths == ()
