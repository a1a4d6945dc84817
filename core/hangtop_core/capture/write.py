"""Write a capture: the newest snapshot first, so that a truncated file still opens.

One gzip file of two members: the header, stored uncompressed in a reserved space of fixed size so
that it can be written last, and everything else. The file gets its name when it is complete, and
never replaces an existing one.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.capture.changes import Taker
from hangtop_core.capture.form import HEADER_BYTES, SCHEMA, Facts, Header
from hangtop_core.capture.redact import Redaction, Redactor
from hangtop_core.capture.traces import Packer
from hangtop_core.errors import CaptureWriteError
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.text.clean import clean
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.model.output import Output
    from hangtop_core.model.recorder.trace import Trace
    from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot
    from hangtop_core.model.updates import Update

LEVEL = 6
HISTORY_TRACES = 32 << 20
"""Bytes of flight recorders beyond which older readings are left out."""
_COUNTED = {
    "node": "nodes",
    "rank": "ranks",
    "stack": "stacks",
    "output": "logs",
    "command": "commands",
}
_LATER = frozenset({"nodes", "outputs", "ranks", "recorder"})
"""Parts of the newest snapshot that have lines of their own."""


class Saved(Struct, frozen=True):
    """A written capture."""

    path: str
    bytes: int
    header: Header


def save(
    path: Path,
    pictures: Sequence[Update],
    facts: Facts,
    redaction: Redaction | Redactor | None = None,
    commands: Iterable[CommandRecord] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Saved:
    """Write snapshots, at least one, to a new file.

    A ``redaction`` with replacement names keeps using them. Once ``stop`` returns True, older
    snapshots are left out.

    Raises:
        CaptureWriteError: it cannot be written; the error names what is on the disk.
    """
    redactor, pictures = _redactor(redaction), _in_order(pictures)
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        descriptor, part = tempfile.mkstemp(".part", f".{path.name[:200]}-", path.parent)
    except OSError as error:
        raise CaptureWriteError(f"cannot write {path}: {error.strerror}", _fix(error)) from None
    writer = None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            writer = Writer(file, redactor, facts)
            writer.write(pictures, commands, stop)
            header = writer.header
            file.flush()
            os.fsync(file.fileno())
            count = file.tell()
        _name(Path(part), path)
    except OSError as error:
        left = _leave(Path(part), useful=writer is not None and writer.useful)
        text = f"cannot write {path}: {error.strerror or error}"
        raise CaptureWriteError(f"{text}{left}", _fix(error)) from None
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return Saved(str(path), count, header)


def stream(
    out: IO[bytes],
    pictures: Sequence[Update],
    facts: Facts,
    redaction: Redaction | None = None,
    commands: Iterable[CommandRecord] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Saved:
    """Write snapshots as `save` does, but to a pipe: whole, from a file without a name."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115
        writer = Writer(file, _redactor(redaction), facts)
        writer.write(_in_order(pictures), commands, stop)
        count = file.tell()
        file.seek(0)
    except OSError as error:
        text = f"cannot write to a temporary folder: {error.strerror}"
        raise CaptureWriteError(text, "-o FILE writes to a file of that name.") from None
    with file:
        shutil.copyfileobj(file, out)
    return Saved("-", count, writer.header)


def _redactor(redaction: Redaction | Redactor | None) -> Redactor:
    return redaction if isinstance(redaction, Redactor) else Redactor(redaction or Redaction())


def _in_order(pictures: Iterable[Update]) -> list[Update]:
    """Return snapshots by their time; of several at one time the last."""
    by_time = {picture.snapshot.at: picture for picture in pictures}
    return [by_time[at] for at in sorted(by_time)]


def _name(part: Path, path: Path) -> None:
    """Give a file its name, unless that is taken."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        part.rename(path)
    else:
        part.unlink()


def _leave(part: Path, *, useful: bool) -> str:
    """Remove the partial file, unless it holds the newest snapshot; return where it then is."""
    if useful:
        return f"; what was written before that is in {part}, and opens"
    part.unlink(missing_ok=True)
    return ""


def _fix(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full: -o FILE writes to another file system."
    if error.errno == errno.EEXIST:
        return "hangtop never overwrites a file: -o FILE takes another name."
    return "-o FILE writes to another folder."


class Writer:
    """Write lines."""

    def __init__(self, file: IO[bytes], redactor: Redactor, facts: Facts) -> None:
        self._file = file
        self._redactor = redactor
        self._facts = facts
        self._zipped: gzip.GzipFile | None = None
        self._packer = Packer()
        self._taker = Taker(self._trace)
        self._stacks: set[str] = set()
        self._texts: dict[int, tuple[Output, Output]] = {}
        """By the identity of a log file's state: the state, and its masked form."""
        self._raw: dict[tuple[str, str], Output] = {}
        """The last written state, unmasked."""
        self._lines = 0
        self._counts: dict[str, int] = {}
        self._history = False
        self.useful = False
        """Whether the newest snapshot is written."""
        self.header = Header(SCHEMA)

    def write(
        self,
        pictures: Sequence[Update],
        commands: Iterable[CommandRecord],
        stop: Callable[[], bool],
    ) -> None:
        """Write everything."""
        newest = pictures[-1]
        self._redactor.learn([picture.snapshot for picture in pictures])
        self._write_header(self._describe(newest, newest, complete=False))
        with gzip.GzipFile("", "wb", LEVEL, self._file, 0) as zipped:
            self._zipped = zipped
            after = self._newest(newest)
            for record in commands:
                self._line({"command": self._taker.whole(record)})
            self.useful = True
            oldest = self._older(pictures, after, stop)
            self._line({"end": {"lines": self._lines + 1}})
        end = self._file.tell()
        self._write_header(self._describe(newest, oldest, complete=True))
        self._file.seek(end)

    # The newest snapshot

    def _newest(self, update: Update) -> Update:
        update = self._cleaned(update, None)
        snapshot = update.snapshot
        base = replace(update, snapshot=_bare(snapshot), diagnoses={})
        self._line({"base": self._taker.whole(base)})
        for key, diagnosis in update.diagnoses.items():
            raw = msgspec.to_builtins(diagnosis)
            text = diagnosis_text(diagnosis, 100)
            self._line({"verdict": key, "diagnosis": raw, "text": text})
        for node in snapshot.nodes:
            self._line({"node": self._taker.whole(node)})
        for place, job in enumerate(snapshot.jobs):
            for rank in job.ranks:
                self._stacks_of(snapshot, _stacks(rank))
                self._line({"of": place, "rank": self._taker.whole(rank, _LATER)})
        for job in snapshot.jobs:
            self._stacks_of(snapshot, _launchers(job))
        for output in snapshot.outputs:
            self._line({"output": self._taker.whole(output)})
        for place, job in enumerate(snapshot.jobs):
            for number, rank in enumerate(job.ranks):
                if rank.recorder is not None:
                    raw = self._taker.whole(rank.recorder)
                    self._line({"of": place, "at": number, "recorder": raw})
        return update

    def _stacks_of(self, snapshot: Snapshot, keys: Iterable[str]) -> None:
        """Write the stacks of these keys that were not written yet."""
        for key in keys:
            frames: tuple[Frame, ...] | None = snapshot.stacks.get(key)
            if frames is not None and key not in self._stacks:
                self._stacks.add(key)
                self._line({"stack": key, "frames": [self._taker.whole(frame) for frame in frames]})

    def _trace(self, trace: Trace) -> int | None:
        written = self._packer.number_of(trace)
        if written is not None:
            return written
        if self._history and self._packer.bytes > HISTORY_TRACES:
            return None
        number, parts, record = self._packer.pack(trace)
        if parts:
            self._line({"parts": self._redactor.data(parts)}, redacted=True)
        columns = record["row"].pop("columns")  # numbers, which stay unchanged
        record = self._redactor.data(record)
        record["row"]["columns"] = columns
        self._line(record, redacted=True)
        self._count("recorders")
        return number

    # Older snapshots

    def _older(self, pictures: Sequence[Update], after: Update, stop: Callable[[], bool]) -> Update:
        self._history = True
        for picture in reversed(pictures[:-1]):
            if stop():
                break
            update = self._cleaned(picture, after)
            before = {id(r) for job in after.snapshot.jobs for r in job.ranks}
            for job in update.snapshot.jobs:
                self._stacks_of(update.snapshot, _launchers(job))
                for rank in job.ranks:
                    if id(rank) not in before:
                        self._stacks_of(update.snapshot, _stacks(rank))
            change = self._taker.difference(after, update)
            self._line({"earlier": change})
            self._count("pictures")
            after = update
        return after

    def _cleaned(self, update: Update, after: Update | None) -> Update:
        """Return a snapshot whose logs are masked and begin as in the next one."""
        later = {(o.node, o.inode): o for o in after.snapshot.outputs} if after else {}
        outputs = tuple(
            self._output(o, later.get((o.node, o.inode))) for o in update.snapshot.outputs
        )
        return replace(update, snapshot=replace(update.snapshot, outputs=outputs))

    def _output(self, output: Output, later: Output | None) -> Output:
        entry = self._texts.get(id(output))
        if entry is not None:
            return entry[1]
        key = (output.node, output.inode)
        if later is None:
            masked = replace(output, text=self._redactor.text(output.text))
        else:
            masked = _shorter(output, self._raw[key], later)
        self._texts[id(output)] = (output, masked)  # kept, so that its id stays unique
        self._raw[key] = output
        return masked

    # Lines

    def _line(self, data: dict[str, Any], *, redacted: bool = False) -> None:
        if self._zipped is None:  # pragma: no cover - lines come after the header
            raise ValueError("no header was written")
        shown = data if redacted else _shielded(self._redactor, data)
        self._zipped.write(msgspec.json.encode(shown) + b"\n")
        self._lines += 1
        for kind, name in _COUNTED.items():
            if kind in data and not redacted:
                self._count(name)

    def _count(self, kind: str) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def _describe(self, newest: Update, oldest: Update, *, complete: bool) -> Header:
        facts, snapshot = self._facts, newest.snapshot
        job = snapshot.job(facts.job)
        diagnosis = newest.diagnoses.get(job.key if job is not None else "")
        verdict = diagnosis.verdicts[0] if diagnosis is not None and diagnosis.verdicts else None
        text = self._redactor.text
        holds = self._counts | {"pictures": self._counts.get("pictures", 0) + 1}
        return Header(
            schema=SCHEMA,
            hangtop=__version__,
            taken_at=snapshot.at,
            by=facts.by,
            targets=text(clean(facts.targets, 1000)),
            job=clean(text(job.key), 1000) if job is not None else None,
            state=diagnosis.state if diagnosis is not None else "",
            cause=verdict.cause if verdict is not None else "",
            summary=clean(text(verdict.summary), 1500) if verdict is not None else "",
            hang_after=facts.hang_after,
            since=oldest.snapshot.at,
            complete=complete,
            holds=holds if complete else {},
            redacted=self._redactor.redaction.names,
            redactions=self._redactor.counts if complete else {},
        )

    def _write_header(self, header: Header) -> None:
        self.header = header
        line = msgspec.json.encode(header)
        line = line.ljust(HEADER_BYTES - 1) + b"\n"
        stored = io.BytesIO()
        with gzip.GzipFile("", "wb", 0, stored, 0) as zipped:
            zipped.write(line)
        self._file.seek(0)
        self._file.write(stored.getvalue())


def _shielded(redactor: Redactor, data: dict[str, Any]) -> dict[str, Any]:
    """Return data masked, except logs, which are masked already and must stay unchanged."""
    output = data.get("output")
    if output is None:
        masked: dict[str, Any] = redactor.data(data)
        return masked
    text = output.pop("text", "")
    return {"output": redactor.data(output) | {"text": text}}


def _shorter(output: Output, after: Output, later: Output) -> Output:
    """Return an older state of a log, whose text is the beginning of a later, written state.

    ``after`` is the later state unmasked: masking keeps lines. Without a common beginning there is
    no text, as when the file was begun anew.
    """
    start, text = output.start, output.text
    if start < after.start:  # the window has moved on
        text = text.encode()[after.start - start :].decode(errors="ignore")
        start = after.start
    if not text or start != after.start or not after.text.startswith(text):
        return replace(output, text="")
    lines = later.text.split("\n")
    if len(lines) != after.text.count("\n") + 1:
        return replace(output, text="")
    whole = lines[: text.count("\n")]
    return replace(output, start=start, text="".join(f"{line}\n" for line in whole))


def _bare(snapshot: Snapshot) -> Snapshot:
    jobs = tuple(replace(job, ranks=()) for job in snapshot.jobs)
    return replace(snapshot, nodes=(), outputs=(), jobs=jobs)


def _stacks(rank: Rank) -> Iterable[str]:
    samples = (rank.sample, *rank.child_samples.values())
    return (thread.stack for sample in samples if sample is not None for thread in sample.threads)


def _launchers(job: Job) -> Iterable[str]:
    return (thread.stack for sample in job.launcher_samples.values() for thread in sample.threads)
