"""A capture: what was written is what is read, however far that goes and whoever wrote it."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import os
import resource
import signal
import stat
import zlib
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire.command_log import CommandRecord
from hangtop_core.capture import (
    Facts,
    Redaction,
    changes,
    form,
    is_capture,
    load,
    memory,
    read,
    save,
)
from hangtop_core.capture.boundary import harmless
from hangtop_core.capture.redact import Redactor
from hangtop_core.diagnosis import Diagnosis, JobState, MomentKind
from hangtop_core.errors import BadCaptureError, CaptureWriteError
from hangtop_core.model.meters import Meters
from hangtop_core.model.node.hardware import Gpu
from hangtop_core.model.output import Output
from hangtop_core.model.rankstates import RankState
from hangtop_core.model.recorder.columns import ENTRY, MAX_LENGTH
from hangtop_core.model.snapshot import DescriptorTable, Node, NodeState, Role
from hangtop_core.model.updates import Update
from hangtop_core.state.outputs import parse
from support.plants import leaks, plants
from support.record import load as recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.model.snapshot import Snapshot

NAMES = ("skip", "recorder", "cluster", "dataloader-worker", "stopped", "lock", "progressing")
LOG = "".join(f"2026-01-01 00:00:{n:02} step {n} on a line of its own\n" for n in range(60))


def judged(snapshot: Snapshot) -> Update:
    return Update(snapshot, {job.key: diagnose(snapshot, job) for job in snapshot.jobs})


def printed(text: str, start: int = 0) -> Output:
    size = start + len(text.encode())
    log = parse("node1", "/log/train.out", text, start, size, 1.0)
    return Output("node1", "8:1", "/log/train.out", (4001,), 1.0, size, 1.0, start, text, log)


def history(update: Update) -> list[Update]:
    """Pictures of a job that moves: ranks come and go, a GPU, a log that grows."""
    snapshot = update.snapshot
    job = snapshot.jobs[0]
    first, *others = job.ranks
    at = snapshot.at
    moved = replace(
        first,
        cpu_share=0.7,
        descriptors=DescriptorTable(at),
        process=replace(first.process, meters=Meters(cpu_s=9.0), env={"RANK": "0"}),
    )
    early = replace(first, sample=None, recorder=None, child_samples={}, moved_at=None)
    gpu = Gpu(0, util=100, energy_j=7)
    node = snapshot.nodes[0]
    steps = [
        replace(snapshot, at=at - 40, jobs=(), nodes=(replace(node, state="connecting"),)),
        replace(snapshot, at=at - 30, jobs=(replace(job, ranks=tuple(others)),)),
        replace(snapshot, at=at - 20, jobs=(replace(job, ranks=(early, *others)),)),
        replace(
            snapshot,
            at=at - 10,
            jobs=(replace(job, ranks=(*others, moved)),),
            nodes=(replace(node, gpus=(gpu, replace(gpu, index=1))), *snapshot.nodes[1:]),
            outputs=(printed(LOG[:400]),),
        ),
        replace(
            snapshot,
            nodes=(replace(node, gpus=(replace(gpu, energy_j=9),)), *snapshot.nodes[1:]),
            outputs=(printed(LOG),),
        ),
    ]
    return [judged(one) for one in steps]


def bare(update: Update) -> Update:
    """A picture without what a capture leaves out of it, its conclusions labelled as a file's."""
    raw = msgspec.json.encode({"diagnoses": update.diagnoses, "nodes": update.snapshot.nodes})
    said = harmless(msgspec.json.decode(raw))
    diagnoses = msgspec.convert(said["diagnoses"], dict[str, Diagnosis])
    nodes = msgspec.convert(said["nodes"], tuple[Node, ...])
    snapshot = replace(update.snapshot, stacks={}, nodes=nodes)
    return replace(update, snapshot=snapshot, diagnoses=diagnoses)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_what_is_read(name: str, tmp_path: Path) -> None:
    pictures = history(recording(name))
    commands = [CommandRecord(1, "node1", (4001,), "py-spy dump", 5.0, True, outcome="done")]
    saved = save(tmp_path / "a.hangtop", pictures, Facts(hang_after=12.0), commands=commands)
    found = load(saved.path)
    assert found.cut is None
    assert found.header == saved.header
    assert found.header.complete
    assert found.header.hang_after == 12.0
    assert (found.header.since, found.header.taken_at) == (
        pictures[0].snapshot.at,
        pictures[-1].snapshot.at,
    )
    assert len(found.pictures) == len(pictures) == found.header.holds["pictures"]
    assert found.commands == tuple(commands)
    for old, new in zip(pictures[:-2], found.pictures[:-2], strict=True):
        assert bare(new) == bare(old)
    log = found.pictures[-2].snapshot.outputs[0]
    assert log.text == LOG[:400][: LOG[:400].rfind("\n") + 1], "whole lines of the log, as it was"
    newest = found.newest
    assert bare(newest) == bare(pictures[-1])
    stacks = pictures[-1].snapshot.stacks
    assert newest.snapshot.stacks.items() <= stacks.items()
    again = judged(newest.snapshot)
    assert bare(again).diagnoses == bare(newest).diagnoses, "analysis is pure: it says the same"


def test_recorders_are_written_once_and_read_back(tmp_path: Path) -> None:
    pictures = history(recording("recorder"))
    saved = save(tmp_path / "a.hangtop", pictures, Facts())
    assert saved.header.holds["recorders"] == 4
    ranks = load(saved.path).newest.snapshot.jobs[0].ranks
    for old, new in zip(pictures[-1].snapshot.jobs[0].ranks, ranks, strict=True):
        assert old.recorder is not None
        assert new.recorder is not None
        assert new.recorder.trace == old.recorder.trace


def test_no_secret_is_in_what_recorders_say(tmp_path: Path) -> None:
    """Names of groups, of operations and of places in code are whatever a program calls them."""
    raw = msgspec.to_builtins(recording("recorder"))
    trace = raw["snapshot"]["jobs"][0]["ranks"][0]["recorder"]["trace"]
    planted = plants()
    for part, field in (("groups", "desc"), ("calls", "name")):
        trace[part] = [{**trace[part][0], field: one.text} for one in planted]
    site = {"name": "f", "short": "x.py", "line": 3}
    trace["sites"] = [[{**site, "file": f"<code> {one.text}"}] for one in planted]
    trace["group_ids"] = {number: one.text for number, one in enumerate(planted)}
    trace["library"] = planted[0].text
    saved = save(tmp_path / "a.hangtop", [msgspec.convert(raw, Update)], Facts())
    with open(saved.path, "rb") as file:
        text = gzip.decompress(file.read()).decode()
    plain = text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    assert not [one.kind for one in planted if leaks(one, text) or leaks(one, plain)]
    ranks = load(saved.path).newest.snapshot.jobs[0].ranks
    assert ranks[0].recorder is not None
    assert ranks[0].recorder.trace is not None
    assert len(ranks[0].recorder.trace.calls) > 1


def test_the_file_is_its_owners_and_lines_of_json(tmp_path: Path) -> None:
    saved = save(tmp_path / "a.hangtop", history(recording("skip")), Facts(by="test"))
    assert stat.S_IMODE(os.stat(saved.path).st_mode) == 0o600
    assert saved.bytes == os.stat(saved.path).st_size
    assert os.listdir(tmp_path) == ["a.hangtop"]
    lines = lines_of((tmp_path / "a.hangtop").read_bytes())
    assert lines[0]["schema"] == form.SCHEMA
    assert lines[0]["by"] == "test"
    verdict = next(line for line in lines if "verdict" in line)
    assert verdict["diagnosis"]["schema"] == "hangtop.diagnosis/1"
    assert "missing-collective" in verdict["text"]
    assert lines[-1] == {"end": {"lines": len(lines) - 1}}


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.hangtop"
    path.write_text("mine")
    with pytest.raises(CaptureWriteError, match="File exists") as wrong:
        save(path, history(recording("skip")), Facts())
    assert "another name" in wrong.value.help
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CaptureWriteError, match="No such file"):
        save(tmp_path / "no" / "a", history(recording("skip")), Facts())


def test_a_full_disk_is_told_and_what_is_there_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is a real limit of this process: what is written beyond it is an error."""
    pictures = history(recording("dataloader-worker"))
    whole = save(tmp_path / "whole", pictures, Facts())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole.bytes - 60, before[1]))
        with pytest.raises(CaptureWriteError, match="File too large") as wrong:
            save(tmp_path / "a.hangtop", pictures, Facts())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not (tmp_path / "a.hangtop").exists()
    left = next(one for one in tmp_path.iterdir() if one.name.endswith(".part"))
    assert str(left) in str(wrong.value)
    found = load(str(left))
    assert found.cut is not None
    assert not found.header.complete
    assert bare(found.newest) == bare(pictures[-1])


def test_writing_can_be_hurried(tmp_path: Path) -> None:
    pictures = history(recording("skip"))
    saved = save(tmp_path / "a.hangtop", pictures, Facts(), stop=lambda: True)
    found = load(saved.path)
    assert found.cut is None
    assert [one.snapshot.at for one in found.pictures] == [pictures[-1].snapshot.at]


@pytest.mark.parametrize("redaction", [Redaction(paths=True), Redaction(hosts=True)])
def test_with_other_names_the_verdict_is_the_same(redaction: Redaction, tmp_path: Path) -> None:
    told = msgspec.json.encode(recording("cluster")).replace(b"node-", b"gpu")
    pictures = history(msgspec.json.decode(told, type=Update))
    newest = pictures[-1]
    saved = save(tmp_path / "a.hangtop", pictures, Facts(), redaction)
    found = load(saved.path)
    job, was = found.newest.snapshot.jobs[0], newest.diagnoses[newest.snapshot.jobs[0].key]
    again = diagnose(found.newest.snapshot, job)
    assert [one.cause for one in again.verdicts] == [one.cause for one in was.verdicts]
    assert again.state == was.state
    text = gzip.decompress((tmp_path / "a.hangtop").read_bytes()).decode()
    if redaction.hosts:
        names = [node.name for node in newest.snapshot.nodes]
        assert [node.name for node in found.newest.snapshot.nodes] != names
        assert not any(f'"{name}"' in text for name in names)
    else:
        assert "/home/ada" not in text
    assert saved.header.redacted == redaction.names


def words_in(rows: list[Any]) -> Iterator[Any]:
    """All keys, and all words that fields may have."""
    for row in rows:
        if isinstance(row, dict):
            yield from row
            yield from words_in(list(row.values()))
        elif isinstance(row, list):
            yield from words_in(row)
    for types in (NodeState, RankState, Role, JobState, MomentKind):
        yield from get_args(types)


def test_nodes_may_be_called_as_fields_and_states_are(tmp_path: Path) -> None:
    pictures = history(recording("recorder"))
    save(tmp_path / "a", pictures, Facts())
    redactor = Redactor(Redaction(hosts=True))
    words = set(words_in(lines_of((tmp_path / "a").read_bytes())))
    redactor.learn_hosts(sorted(word for word in words if not word.isdecimal()))
    found = load(save(tmp_path / "b", pictures, Facts(), redactor).path)
    assert (found.cut, len(found.pictures)) == (None, len(pictures))
    job, was = found.newest.snapshot.jobs[0], pictures[-1].snapshot.jobs[0]
    assert (len(job.ranks), job.world_size) == (len(was.ranks), was.world_size)


# What strangers make of it


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("capture") / "a.hangtop"
    save(path, history(recording("recorder")), Facts())
    return path.read_bytes()


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def zipped(lines: list[Any]) -> bytes:
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines), 1)


def test_cut_off_at_any_byte_it_opens_as_far_as_it_goes(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    opened = partial = 0
    newest = load_bytes(whole, path).newest
    places = {*range(0, len(whole), 149), *range(40), *range(len(whole) - 40, len(whole))}
    for length in sorted(places):
        found = opens(whole[:length], path)
        if isinstance(found, str):
            assert opened == 0, f"{length}: it opened when it was shorter: {found}"
            continue
        opened += 1
        assert found.cut is not None or length >= len(whole) - 16
        assert found.newest.snapshot.at == newest.snapshot.at
        assert found.partial or bare(found.newest) == bare(newest)
        partial += found.partial
        judged(found.newest.snapshot)
    assert opened > partial + 10 > 20


def load_bytes(data: bytes, path: Path) -> read.Capture:
    path.write_bytes(data)
    return load(str(path))


def opens(data: bytes, path: Path) -> read.Capture | str:
    """What is in it, or why it cannot be opened; no other error than that."""
    try:
        return load_bytes(data, path)
    except BadCaptureError as error:
        return str(error)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no capture"),
        (b"\x1f\x8b", "no capture"),
        (b"PK\x03\x04 something else", "no capture"),
        (b"\x1f\x8b\x08\x00 and then nothing that is gzip", "no capture"),
        (gzip.compress(b"\x80\x04\x95 a pickle"), "no capture"),
        (gzip.compress(b'{"schema": "hangtop.diagnosis/1"}\n'), "no capture"),
        (gzip.compress(b'{"schema": "hangtop.capture/2", "new": 1}\n'), "version 2"),
        (gzip.compress(b'{"schema": "hangtop.capture/\x1b[2J"}\n'), "no capture"),
        (gzip.compress(b'{"schema": "hangtop.capture/\\u001b[2J9"}\n'), "version 9"),
        (gzip.compress(b'{"schema": "hangtop.capture/1"}\n'), "holds no picture"),
        (gzip.compress(b'{"schema": "hangtop.capture/1", "hang_after": -1}\n'), "header"),
        (gzip.compress(b'{"schema": "hangtop.capture/1"}\n{"base": 7}\n'), "damaged"),
        (gzip.compress(b'{"schema": "hangtop.capture/1"}\n{"rank": {}}\n'), "no base"),
        (gzip.compress(b'{"schema": "hangtop.capture/1"}\n' + b"[" * 100_000), "holds no picture"),
        (gzip.compress(b'{"schema": "hangtop.capture/1"}\n' + b"[" * 100_000 + b"\n"), "damaged"),
    ],
    ids=itertools.count(),  # not the bytes: they hold the time
)
def test_what_is_no_capture_is_told(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadCaptureError, match=says) as wrong:
        load_bytes(data, tmp_path / "x")
    assert str(wrong.value).isprintable()


def test_a_folder_and_nothing_are_no_captures(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert not is_capture(str(path))
        with pytest.raises(BadCaptureError):
            load(str(path))
    (tmp_path / "hang-1").mkdir()
    (tmp_path / "hang-1" / "a.hangtop").touch()
    with pytest.raises(BadCaptureError) as wrong:
        load(str(tmp_path))
    assert wrong.value.help == f"Captures in it: {tmp_path}/hang-1/a.hangtop"


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert not is_capture(str(pipe))
    with pytest.raises(BadCaptureError, match="no regular file"):
        load(str(pipe))


def test_a_line_that_is_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        file.write(b'{"schema": "hangtop.capture/1"}\n')
        for _ in range(80):
            file.write(b" " * (1 << 20))
    assert len(out.getvalue()) < 1 << 20
    with pytest.raises(BadCaptureError, match="more than hangtop reads"):
        load_bytes(out.getvalue(), tmp_path / "bomb")


def test_what_unpacks_to_too_much_memory_is_cut_off(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST", 32 << 20)
    lines = lines_of(whole)
    trace = next(line for line in lines if "trace" in line)
    length = MAX_LENGTH // 4
    columns = base64.b64encode(zlib.compress(bytes(length * ENTRY))).decode()
    row = trace["row"] | {"length": length, "columns": columns}
    head = lines[: lines.index(trace)]
    many = [trace | {"trace": number, "row": row} for number in range(2 * memory.EVERY_LINES)]
    data = zipped([*head, *many])
    assert len(data) < 1 << 20
    found = load_bytes(data, tmp_path / "x")
    assert "more memory than hangtop gives it: 32.0 MiB" in (found.cut or "")


def test_limits_hold(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("MAX_LINES", 20), ("MAX_BYTES", 20_000), ("MAX_PICTURES", 2), ("MAX_STACKS", 1),
        ("MAX_RANKS", 2), ("MAX_NODES", 0), ("MAX_HOLDERS", 40),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(read, name, value)
            found = load_bytes(whole, tmp_path / "x")
            assert found.cut is not None, name
            assert "more" in found.cut, name


def test_items_of_all_pictures_together_have_a_limit(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of fifty bytes can be another picture of all ranks, each of which is looked at."""
    *lines, end = lines_of(whole)
    lines = [line for line in lines if "earlier" not in line]
    base = next(line["base"]["snapshot"] for line in lines if "base" in line)
    changed = {"set": {"0": {"ranks": {"set": {"0": {"moved_at": 7.0}}}}}}
    pictures = [
        {"earlier": {"snapshot": {"at": base["at"] - number, "jobs": changed}}}
        for number in range(1, 9)
    ]
    data = zipped([*lines, *pictures, end])
    assert load_bytes(data, tmp_path / "x").cut is None
    monkeypatch.setattr(changes, "MAX_MADE", 20)
    found = load_bytes(data, tmp_path / "x")
    assert "more than 20 items in all pictures, the limit" in (found.cut or "")
    assert 1 < len(found.pictures) < 9


def test_what_a_later_version_adds_is_left_out(whole: bytes, tmp_path: Path) -> None:
    lines = lines_of(whole)
    lines[0]["mood"] = "good"
    lines[1]["base"]["mood"] = "good"
    lines.insert(2, {"mood": {"of": "everybody"}})
    for line in lines:
        for name in ("rank", "node", "earlier"):
            if isinstance(line.get(name), dict):
                line[name]["mood"] = ["good"]
    found = load_bytes(zipped(lines), tmp_path / "x")
    assert found.cut is None
    assert bare(found.newest) == bare(load_bytes(whole, tmp_path / "y").newest)
