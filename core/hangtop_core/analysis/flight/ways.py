"""By what flight recorders were read, or why not: sentences for the codes that nodes send.

A node looks at every way to a rank's recorder and says how each stands as a code with arguments
(`hangtop_probe.recorder.recorderways`, `rankrecorder`, `inject`). What the codes mean, and what
would change it, stands here only; `hangtop flight`, blind spots and the doctor's rung share it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.diagnosis import NO_FIX, BlindSpot
from hangtop_core.model.recorder.recorder import CLOCK_SET
from hangtop_core.model.recorder.trace import STARTED, STATE
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hangtop_core.model.recorder.trace import Trace
    from hangtop_core.model.snapshot import Rank, Recorder, RecorderWay

PREPARE = (
    "start the job by `hangtop run -- COMMAND`; or with TORCH_FR_BUFFER_SIZE=2000 "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and, for NCCL, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_"
)
PREPARE_GLOO = "start the job by `hangtop run -- COMMAND`"
"""gloo's recorder is on by default from torch 2.11, and there is no pipe to ask it by."""
_SIZE = "start the job with {setting}=2000"
_TRIGGER = "`hangtop flight --trigger` makes it write one, as R does on the screen"
_INJECT = (
    "`hangtop flight --allow-inject`: gdb calls torch in the rank, which stops it for a second"
)
_NEWER_GDB = "a newer gdb on its node (14 or later was reported to be mended)"
_STACK = "only its stack tells where it is: `hangtop dump`"

_TEXTS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("recorder", "off"): ("the recorder is off: {setting} is 0", _SIZE),
    ("recorder", "off-default"): (
        "the recorder is off, as it is by default up to torch 2.10 (this is {torch})",
        _SIZE,
    ),
    ("recorder", "off-new-name"): (
        "the recorder is off: torch {torch} does not know TORCH_FR_BUFFER_SIZE yet",
        _SIZE,
    ),
    ("recorder", "no-torch"): ("the rank has not loaded torch", ""),
    ("pipe", "there"): ("its dump pipe was not used: that makes the rank write a file", _TRIGGER),
    ("pipe", "rare"): (
        "its dump pipe was not used, and the rank looks at it only every 8 minutes "
        "(TORCH_NCCL_DUMP_ON_TIMEOUT is off)",
        _TRIGGER,
    ),
    ("pipe", "no-reader"): (
        "nobody reads its dump pipe: the monitor thread has ended, or the group was destroyed",
        _STACK,
    ),
    ("pipe", "unwritable"): ("its dump pipe cannot be written to: {why}", "run as the job's user"),
    ("pipe", "no-dump"): (
        "it wrote no dump within {seconds} s of the byte in its pipe: torch needs the GIL for "
        "stacks, and a thread that is not in a CUDA call",
        _STACK,
    ),
    ("pipe", "gloo"): ("gloo has no dump pipe", PREPARE_GLOO),
    ("pipe", "nccl2"): (
        "the engine nccl2 of torch {torch} has no dump pipe",
        "TORCH_DIST_USE_NCCL2=0 chooses the engine that has",
    ),
    ("pipe", "not-set"): ("no dump pipe was asked for", PREPARE),
    ("pipe", "blocking-wait"): (
        "no dump pipe: with {setting} there is no watchdog",
        "start the job without {setting}",
    ),
    ("pipe", "old-name"): (
        "no dump pipe: torch {torch} makes it only where {setting} is set, by that old name",
        "start the job with {setting}=2000, too",
    ),
    ("pipe", "no-group"): (
        "no dump pipe: there is no default NCCL group yet, or not any more",
        _STACK,
    ),
    ("pipe", "missing"): ("its dump pipe {path} is not there", _STACK),
    ("file", "stale"): ("its dump file {path} is of an earlier run", ""),
    ("file", "owner"): ("its dump file {path} belongs to somebody else", "look who wrote it"),
    ("file", "link"): ("its dump file {path} is a link, which is not followed", ""),
    ("server", "no-thread"): ("no worker server runs in the rank", PREPARE),
    ("server", "unnamed"): (
        "a worker server is looked for from torch 2.8 on (this is {torch})",
        "with NCCL: `hangtop flight --trigger`; gloo keeps no record before torch 2.8",
    ),
    ("server", "nccl-only"): (
        "its worker server tells only of NCCL, which has recorded nothing: gloo's recorder is not "
        "known to it, as in torch 2.8",
        _INJECT,
    ),
    ("server", "denied"): ("{why}", "{fix}"),
    ("server", "no-answer"): ("its worker server gave no answer in {seconds} s", _STACK),
    ("server", "no-handler"): ("its worker server knows no flight recorder", PREPARE),
    ("debug-server", "no-answer"): ("its debug server gave no answer in {seconds} s", _STACK),
    ("debug-server", "no-handler"): ("its debug server knows no flight recorder", PREPARE),
    ("debug-server", "other-network"): (
        "its worker server listens in a network of its own (container)",
        "run hangtop inside of the container",
    ),
    ("debug-server", "no-store"): (
        "its worker server listens on TCP, and where the job's store is cannot be told",
        PREPARE,
    ),
    ("debug-server", "store"): (
        "its worker server listens on TCP, and the store at {where} does not tell the port: {why}",
        "",
    ),
    ("debug-server", "unpublished"): (
        "its worker server listens on a TCP port that is not published in the store: not known "
        "for sure, and not asked",
        "call torch.distributed.debug.start_debug_server(), which publishes it",
    ),
    ("inject", "not-allowed"): ("gdb was not allowed", _INJECT),
    ("inject", "no-gdb"): ("gdb is not on its node", "apt-get install gdb"),
    ("inject", "no-torch"): ("gdb was not used: the rank has not loaded torch", ""),
    ("inject", "gone"): ("gdb was not used: the rank has ended", ""),
    ("inject", "gil"): (
        "gdb was not used: thread {thread} holds the GIL, and the call would wait for it",
        _STACK,
    ),
    ("inject", "gil-unknown"): ("gdb was not used: who holds the GIL is not known ({why})", ""),
    ("inject", "halted"): (
        "gdb was not used: a thread is in state {state}, and attaching could stop the rank for "
        "good",
        _STACK,
    ),
    ("inject", "awake"): ("gdb was not used: the main thread does not rest", "try again"),
    ("inject", "traced"): ("gdb was not used: another tracer is attached", "end it first"),
    ("inject", "denied"): ("gdb was not used: {why}", "{fix}"),
    ("inject", "no-folder"): ("gdb was not used: no file in the rank's /tmp ({why})", ""),
    ("inject", "harmful"): (
        "gdb on this node breaks what it calls into: a process of hangtop's own {what}, and gdb "
        "said: {said}",
        _NEWER_GDB,
    ),
    ("inject", "no-calls"): (
        "gdb on this node cannot call into processes, which was tried on one of hangtop's own: "
        "{said}",
        _NEWER_GDB,
    ),
    ("inject", "no-attach"): (
        "gdb on this node may not attach to a process of hangtop's own: {said}",
        "`hangtop doctor` tries ptrace there",
    ),
    ("inject", "untried"): (
        "gdb was not used: no call could be tried on a process of hangtop's own first ({why})",
        "try again",
    ),
    ("inject", "not-started"): ("gdb could not be started: {why}", ""),
    ("inject", "still"): (
        "gdb has not come back in {seconds} s and is left alone: ending it would end the rank",
        "wait for it; the rank is stopped as long",
    ),
    ("inject", "nothing-written"): ("gdb called torch, and torch wrote nothing", _STACK),
    ("inject", "gdb-said"): ("torch wrote nothing when gdb called it; gdb said: {said}", _STACK),
    ("inject", "not-running"): ("the rank does not run again after gdb", "kill -CONT its pid"),
}
_COMMON: Mapping[str, tuple[str, str]] = {
    "unreadable": ("{what} cannot be read: {why}", ""),
    "truncated": ("{what} is cut off", ""),
    "partly-earlier": (
        "what {what} holds from before the rank's start is of an earlier run, and left out",
        "",
    ),
    "earlier": (
        "{what} is of an earlier run, or the clock was set: all in it is from before the rank's "
        "start",
        "",
    ),
    CLOCK_SET: (
        "{count} entries of {what} have times before the rank's start, or to come: its clock was "
        "set. Their order counts, their times do not",
        "",
    ),
    "refused": ("{what} was {why}", "look who wrote it"),
    "memory": ("{what} was refused: it takes far more memory than its size explains", ""),
    "deep": ("{what} was refused: it is nested too deeply", ""),
    "foreign": ("{what} is no dump: it {why}", ""),
    "too-large": ("{what} has {mib} MiB; the limit is {limit}", ""),
    "broke": ("{what} was refused: the process that read it broke down ({why})", ""),
    "error": ("{what}: {why}", ""),
}
_ODD_TIMES = frozenset({"partly-earlier", CLOCK_SET})
_UNREADABLE = (frozenset(_COMMON) - _ODD_TIMES) | {"owner", "link"}
"""Codes of ways by which a recorder is there, and could not be read."""
_WHAT = {
    "file": "its dump file {path}",
    "pipe": "the dump it wrote",
    "server": "what its worker server said",
    "debug-server": "what its debug server said",
    "inject": "what it wrote for gdb",
}
_NOT_ASKED = "it was not asked: the rank was at work, or this is --readonly"
_BY = {
    "file": "a dump file that was written before",
    "pipe": "a dump file, asked for through the pipe",
    "server": "a worker server",
    "debug-server": "a debug server",
    "inject": "gdb, which called torch",
}
# Said first is what stands in the way most; of a rank that could be made to answer, how.
_ORDER = ("recorder", "file", "debug-server", "server", "pipe", "inject")
_SILENT = {("recorder", "on"), ("recorder", "unknown-version"), ("file", "none"), ("pipe", "off")}


TOGETHER_S = 300.0
"""Dumps of one timeout are written within: torch waits a minute for all ranks to do so."""
_OLD = (None, "its dump file is much older than those of other ranks", _TRIGGER, ())

_ENDED = (None, "the rank has ended", "`hangtop flight` on its dump file, if it left one", ())


class Source(Struct, frozen=True):
    """Ranks whose recorders were read the same way, or were not for the same reason."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    by: str | None
    """By what, for people; None where they were not read."""
    why: str = ""
    fix: str = ""
    cautions: tuple[str, ...] = ()


class _Blanks(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def explain(way: RecorderWay) -> tuple[str, str]:
    """Why a way gave nothing, and what would change that; empty where there is nothing to say."""
    if (way.way, way.code) in _SILENT or way.code in ("read", "on"):
        return "", ""
    args = _Blanks({key: clean(value, 200) for key, value in way.args.items()})
    # Ranks that stand alike are told together, so their own numbers are left out.
    args["path"] = re.sub(r"(?<!\d)\d+(\.pipe)?$", r"<rank>\1", args.get("path", ""))
    texts = _TEXTS.get((way.way, way.code))
    if texts is None:
        what = _WHAT.get(way.way)
        # A name that is not known here is text of a node, and no template.
        args["what"] = clean(way.way, 40) if what is None else what.format_map(args)
        texts = _COMMON.get(way.code, ("{what}: {code}", ""))
        args["code"] = clean(way.code, 40)
    why, fix = (text.format_map(args) for text in texts)
    return clean(why, 300), clean(fix, 300)


def why_not(ways: Iterable[RecorderWay]) -> tuple[str, str]:
    """Why no way gave a recorder, all reasons in one sentence, and the best thing to do."""
    ordered = sorted(
        ways, key=lambda one: _ORDER.index(one.way) if one.way in _ORDER else len(_ORDER)
    )
    told = [(one, *explain(one)) for one in ordered]
    off = [(why, fix) for one, why, fix in told if one.way == "recorder" and why]
    if off:
        return off[0]
    reasons = [why for one, why, _ in told if why and one.code != "not-allowed"]
    now = [fix for _, why, fix in told if why and fix in (_TRIGGER, _INJECT, _NEWER_GDB)]
    now = now or [fix for _, why, fix in told if why and fix == _STACK][:1]
    fixes = [fix for _, why, fix in told if why and fix]
    if any((one.way, one.code) == ("pipe", "gloo") for one in ordered):
        fixes = [PREPARE_GLOO if fix == PREPARE else fix for fix in fixes]
    both = list(dict.fromkeys([*now, *fixes[:1]]))
    return "; ".join(reasons) or "nothing is known of it", "; or ".join(both)


def cautions(recorder: Recorder) -> tuple[str, ...]:
    """What one has to know when reading a recorder."""
    trace = recorder.trace
    return () if trace is None else tuple(_cautions(trace, recorder))


def _cautions(trace: Trace, recorder: Recorder) -> Iterable[str]:
    yield from (explain(one)[0] for one in recorder.ways if one.code in _ODD_TIMES)
    if recorder.source == "file":
        yield "written by the rank earlier: it may have gone on since"
    backends = {call.backend for call in trace.calls}
    if "gloo" in backends:
        yield "gloo never says started, and records neither sends nor the ranks of groups"
    if "nccl" in backends and not any(flag & STATE == STARTED for flag in set(trace.flag)):
        yield (
            "started is never said where timing is off (TORCH_NCCL_ENABLE_TIMING=1 turns it on): "
            "what waits may run on the GPU, or be queued"
        )
    if trace.wrapped:
        yield "the ring has wrapped: older operations are lost"
    if trace.dropped:
        yield "some entries could not be read"


def sources(ranks: Sequence[Rank]) -> tuple[Source, ...]:
    """By what the recorders of ranks were read, or why not; ranks that stand alike together."""
    found: dict[tuple[str | None, str, str, tuple[str, ...]], list[Rank]] = defaultdict(list)
    old = outdated(ranks)
    for rank in ranks:
        ended = rank.recorder is None and rank.ended
        known = _ENDED if ended else _standing(rank.recorder)
        found[_OLD if rank.rank in old else known].append(rank)
    return tuple(
        Source(
            tuple(sorted({rank.rank for rank in some})),
            tuple(sorted({rank.node for rank in some})),
            *key,
        )
        for key, some in found.items()
    )


def outdated(ranks: Sequence[Rank]) -> frozenset[int]:
    """Ranks whose dump file is much older than those of others: from before the hang."""
    files = {
        rank.rank: rank.recorder.at
        for rank in ranks
        if rank.recorder is not None and rank.recorder.source in ("file", "pipe")
    }
    newest = max(files.values(), default=0.0)
    return frozenset(rank for rank, at in files.items() if at < newest - TOGETHER_S)


def unreadable(ranks: Sequence[Rank]) -> frozenset[int]:
    """Ranks that have left a recorder which could not be read: no sign that they left none."""
    return frozenset(
        rank.rank
        for rank in ranks
        if rank.recorder is not None
        and rank.recorder.trace is None
        and any(way.code in _UNREADABLE for way in rank.recorder.ways)
    )


def _standing(recorder: Recorder | None) -> tuple[str | None, str, str, tuple[str, ...]]:
    if recorder is None:
        return None, _NOT_ASKED, "`hangtop flight` asks it, without --readonly", ()
    if recorder.trace is not None:
        by = _BY.get(recorder.source or "", "a way unknown here")
        return by, "", "", cautions(recorder)
    failure = recorder.failure
    if failure is not None and failure.kind not in ("missing", "unsupported"):
        return None, clean(failure.text), clean(failure.fix or ""), ()
    why, fix = why_not(recorder.ways)
    return None, why, fix, ()


def unread(ranks: Sequence[Rank]) -> tuple[BlindSpot, ...]:
    """The ranks whose recorders were not read, by the reason."""
    return tuple(
        BlindSpot("flight recorder", one.nodes, one.ranks, one.why, one.fix or NO_FIX)
        for one in sources(ranks)
        if one.by is None
    )
