"""How big a capture is, and how long writing and opening take: 8,192 ranks, ten minutes.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/capture.py [RANKS] [SECONDS]

The job is made up: two minutes of steps in which every rank's counters move every second, then a
hang in which every fiftieth still wakes up; recorders of 488 entries, as many as are asked of so
many ranks. The peer is what comes to mind first: every picture as JSON of its own, with gzip.
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, load, save
from hangtop_core.model.recorder.trace import COMPLETED, DONE, Call, GroupInfo, Trace
from hangtop_core.model.snapshot import Recorder
from hangtop_core.model.updates import Update
from hangtop_core.state.history import History

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.record import load as recording

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank

MOVES_S = 120
"""Seconds for which the job makes steps."""
ENTRIES = 488
"""Of a recorder, where 8,192 ranks are asked."""
HANGS_AFTER_EVERY = 50
"""Of so many ranks one moves in a second of the hang."""


def trace(rank: int, site: tuple[object, ...], at: float, rnd: random.Random) -> Trace:
    """Twenty operations a second, each noted up to 2 ms late."""
    count, start = ENTRIES, int(at * 1e9) - ENTRIES * 50_000_000
    created = [start + n * 50_000_000 + rnd.randrange(2_000_000) for n in range(count)]
    group = GroupInfo("0", "default_pg", enqueued=count, completed=count - 1)
    return Trace(
        rank, "worker server", "2.10", groups=(group,),
        calls=(Call("nccl:all_reduce", "[[8, 4]]", "[[8, 4]]", "['Float']", "['Float']"),),
        sites=(site,), length=count, newest_ns=created[-1], timeout_ms=600_000,
        raw_group=array("H", [0] * count).tobytes(), raw_call=array("I", [0] * count).tobytes(),
        raw_site=array("I", [0] * count).tobytes(),
        raw_flag=bytes([COMPLETED | DONE] * (count - 1) + [0]),
        raw_seq=array("q", range(7000, 7000 + count)).tobytes(),
        raw_record=array("q", range(7000, 7000 + count)).tobytes(),
        raw_created=array("q", created).tobytes(),
    )  # fmt: skip


def pictures(count: int, seconds: int, *, recorders: bool) -> History:
    """What an app or `hangtop capture --for` holds after that time."""
    rnd = random.Random(1)
    update = recording("skip")
    snapshot, job = update.snapshot, update.snapshot.jobs[0]
    began = snapshot.at
    nodes = tuple(
        replace(snapshot.nodes[0], name=f"node{n:04d}", hostname=f"node{n:04d}")
        for n in range((count + 7) // 8)
    )

    def rank(number: int) -> Rank:
        like = job.ranks[2 if number == count // 3 else 0]
        process = replace(
            like.process, pid=rnd.randrange(2000, 4_000_000), rank=number,
            node=f"node{number // 8:04d}",
            env={**like.process.env, "RANK": str(number), "LOCAL_RANK": str(number % 8)},
        )  # fmt: skip
        return replace(like, rank=number, node=process.node, process=process)

    def moved(one: Rank, at: float) -> Rank:
        meters = replace(
            one.process.meters, cpu_s=round(rnd.random() * 1e5, 2),
            main_cpu_ns=rnd.randrange(10**13), main_switches=rnd.randrange(10**7),
            read_bytes=rnd.randrange(10**12), rss=rnd.randrange(10**11),
        )  # fmt: skip
        process = replace(one.process, meters=meters)
        share = round(rnd.random(), 3)
        return replace(one, process=process, moved_at=at, cpu_share=share, main_cpu_share=share)

    ranks = [rank(number) for number in range(count)]
    history = History()
    for second in range(seconds):
        at = began + second
        every = 1 if second < MOVES_S else HANGS_AFTER_EVERY
        for number in range(second % every, count, every):
            ranks[number] = moved(ranks[number], at)
        if recorders and second == seconds - 1:
            frames = next(iter(snapshot.stacks.values()))
            for number, one in enumerate(ranks):
                told = Recorder(at, "server", trace=trace(number, frames, at, rnd))
                ranks[number] = replace(one, recorder=told)
        big = replace(job, ranks=tuple(ranks), world_size=count, nodes=tuple(n.name for n in nodes))
        now = replace(snapshot, at=at, tick=second, jobs=(big,), nodes=nodes)
        history.add(Update(now, update.diagnoses))
    newest = history.pictures[-1]
    judged = {one.key: diagnose(newest.snapshot, one) for one in newest.snapshot.jobs}
    return History((*history.pictures[:-1], replace(newest, diagnoses=judged)))


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    for recorders in (False, True):
        history = pictures(count, seconds, recorders=recorders)
        kept = history.pictures
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.hangtop"
            began = time.process_time()
            saved = save(path, kept, Facts())
            wrote = time.process_time() - began
            began = time.process_time()
            found = load(saved.path)
            read = time.process_time() - began
            began = time.process_time()
            newest = found.newest.snapshot
            diagnose(newest, newest.jobs[0])
            judged = time.process_time() - began
        began = time.process_time()
        plain = len(gzip.compress(msgspec.json.encode(kept[-1]), 6))
        alone = time.process_time() - began
        what = "with recorders" if recorders else "without recorders"
        print(
            f"{count} ranks, {len(kept)} pictures of {seconds} s, {what}: "
            f"{saved.bytes / 1e6:.2f} MB, written in {wrote:.1f} s, "
            f"opened in {read:.1f} s, judged in {judged:.1f} s of CPU"
        )
        print(
            f"  every picture by itself: {len(kept) * plain / 1e6:.0f} MB "
            f"({len(kept) * plain / saved.bytes:.0f} times as much), "
            f"{len(kept) * alone:.0f} s to write"
        )


if __name__ == "__main__":
    main()
