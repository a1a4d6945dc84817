"""The loops and conditions around a line of a program."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.stacks import blocks, rankflags, sources

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """\
def fit(loader, rank):
    for epoch in range(3):
        for batch in loader:
            step(batch)
            if (
                rank == 0
                and batch
            ):
                log(batch)
            elif rank == 1:
                with lock:
                    log(1)
            else:
                try:
                    log(2)
                except OSError:
                    log(3)
        else:
            done(4)
        while not ready():
            wait()
    def later():
        return save()
    finish(later)
if __name__ == "__main__":
    fit([], 0)
"""


@pytest.mark.parametrize(
    ("line", "around"),
    [
        (1, []),
        (3, [(2, False), (3, False)]),
        (4, [(2, False), (3, False)]),
        (6, [(2, False), (3, False)]),  # the condition itself
        (9, [(2, False), (3, False), (5, False)]),
        (10, [(2, False), (3, False), (5, True)]),
        (12, [(2, False), (3, False), (5, True), (10, False)]),
        (15, [(2, False), (3, False), (5, True), (10, True)]),
        (17, [(2, False), (3, False), (5, True), (10, True)]),
        (19, [(2, False)]),  # the else of a loop is out of it
        (20, [(2, False), (20, False)]),
        (21, [(2, False), (20, False)]),
        (23, []),  # a function of its own
        (24, []),
        (26, [(25, False)]),
        (99, []),
    ],
)
def test_what_a_line_stands_in(line: int, around: list[tuple[int, bool]]) -> None:
    found = blocks.around(blocks.statements(PROGRAM.encode()), line)
    assert [(first, other) for first, _, other in found if other is not None] == around


@pytest.mark.parametrize(
    ("line", "beside"),
    [(9, []), (11, []), (12, [11]), (15, []), (17, [15, 16]), (21, [])],
)
def test_what_a_line_holds_and_what_failed_before_it(line: int, beside: list[int]) -> None:
    found = blocks.around(blocks.statements(PROGRAM.encode()), line)
    assert [first for first, _, other in found if other is None] == beside


RETRY = """\
def get(self):
    with self.lock, open(
            self.path) as f:
        while True:
            try:
                return super().get()
            except OSError:
                pass
            time.sleep(1)
"""


def test_what_was_tried_before_a_line(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(RETRY)
    os.utime(file, (0, 0))
    found = sources.around(os.getpid(), str(file), 9, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    assert found is not None
    within, beside = found
    assert within == [(4, "while True:")]
    assert beside == [(2, "with self.lock, open( self.path) as f:"), (6, "return super().get()")]


ENDS = """\
def fit(self):
    try:
        while True:
            self.step()
    except KeyboardInterrupt:
        pass
    finally:
        for one in self.callbacks:
            one.close()
    self.done()
"""


def test_who_is_in_a_finally_is_told_so_and_of_which_try() -> None:
    found = blocks.around(blocks.statements(ENDS.encode()), 9)
    assert found == [(3, 3, None), (7, 7, None), (8, 8, 0)]
    assert blocks.around(blocks.statements(ENDS.encode()), 10) == [(3, 3, None)]


GUARDS = """\
@cache
@rank_zero_only
def log(self, step):
    if self.rank != 0: return
    for one in self.metrics:
        if one.rank != self.rank:
            if step:
                continue
        if rank is None:
            raise OSError
        if not is_main():
            skip(one)
            continue
        elif self.main:
            save(one)
        else:
            raise OSError
        rank == 0 and gather(one)
    gather(one)
    with accelerator.main_process_first():
        if not ready:
            return
        barrier()
"""


@pytest.mark.parametrize(
    ("line", "around"),
    [
        (4, ["@rank_zero_only", "if self.rank != 0: return", "at: if self.rank != 0: return"]),
        (7, ["@rank_zero_only", "past: if self.rank != 0: return", "if one.rank != self.rank:"]),
        (12, ["@rank_zero_only", "past: if self.rank != 0: return", "if not is_main():"]),
        (15, ["@rank_zero_only", "past: if self.rank != 0: return", "else: if not is_main():",
              "elif self.main:"]),
        (18, ["@rank_zero_only", "past: if self.rank != 0: return", "past: if not is_main():",
              "at: rank == 0 and gather(one)"]),
        (19, ["@rank_zero_only", "past: if self.rank != 0: return"]),
        (23, ["@rank_zero_only", "past: if self.rank != 0: return", "past: if not ready: return"]),
    ],
)  # fmt: skip
def test_what_turns_other_ranks_back_before_a_line(
    tmp_path: Path, line: int, around: list[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(GUARDS)
    os.utime(file, (0, 0))
    found = sources.around(os.getpid(), str(file), line, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    assert found is not None
    assert [text for _, text in found[0] if not text.startswith("for ")] == around


def test_what_a_program_keeps_of_the_rank_is_told_beside_its_name(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "self.verbose = not quiet and int(os.environ.get('RANK', 0)) == 0\n"
        "log = Log(path, loud=rank == 0, step=rank)\n"
        "if step:  # on all ranks\n    if self.verbose:\n        if loud and log: save()\n"
        "while loud: save()\n"
    )
    os.utime(file, (0, 0))
    found = sources.around(os.getpid(), str(file), 5, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    assert found is not None
    assert [text for _, text in found[0][:3]] == [
        "if step:",
        "if self.verbose:  # verbose = not quiet and int(os.environ.get('RANK', 0)) == 0",
        "if loud and log: save()  # loud=rank == 0",
    ]
    found = sources.around(os.getpid(), str(file), 6, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    assert found == ([(6, "while loud: save()")], [])


KEPT = """\
manager = Manager(folder / "kept", every=8) if rank == 0 else None
tracker: Tracker | None = (
    Tracker(name=str(Path(root))) if dist.get_rank() == 0 else None
)
saver = None if rank else Saver()
hi: Hi | None = None
if is_main_process():
    for path in paths:
        hi = Hi(path)
class Loop:
    def __init__(self, hi, step):
        self.hi = hi
        self.step = step
if rank == 0:
    log = Log()
else:
    log = None
"""
NOT_KEPT = """\
lr = 0.1 if rank == 0 else 0.2
data = load() if rank == 0 else None
data = broadcast(data)
state = load() if rank == 0 else None
dist.broadcast_object_list([state])
best = None
if rank == 0:
    best = 3
else:
    best = 4
ema = Ema() if len(ranks) == 1 else None
if local_rank == -1:
    solo = Solo()
else:
    solo = None
low = Low() if cfg.lora_rank == 8 else None
log = Log(path, every=8) if rank == 0 else other()
"""


def test_what_is_there_on_one_rank_alone_is_kept_of_the_rank() -> None:
    lines = KEPT.encode().split(b"\n")
    found = rankflags.of(blocks.statements(KEPT.encode()), lines)
    assert {name.decode(): text.decode() for name, text in found.items()} == {
        "=manager": KEPT.splitlines()[0],
        "=tracker": "tracker = ( Tracker(name=str(Path(root))) if dist.get_rank() == 0 else None )",
        "=saver": "saver = None if rank else Saver()",
        "=hi": "if is_main_process(): hi = Hi(path)",
        "=self.hi": "if is_main_process(): hi = Hi(path)",
        "=log": "if rank == 0: log = Log()",
    }


def test_what_others_may_have_as_well_is_not_kept_of_the_rank() -> None:
    lines = NOT_KEPT.encode().split(b"\n")
    assert rankflags.of(blocks.statements(NOT_KEPT.encode()), lines) == {}


def test_a_condition_on_what_one_rank_alone_has_is_told_with_that(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "mm = Save(every=8) if rank == 0 else None\nif mm is not None and step:\n  mm.save()\n"
        "if args.mm:\n  mm.save()\nif step % every:\n  mm.save()\n"
    )
    os.utime(file, (0, 0))
    mount = procfs.Mount(1, "0:1", "/", "ext4", "x")
    found = [sources.around(os.getpid(), str(file), line, [mount]) for line in (3, 5, 7)]
    kept = "mm = Save(every=8) if rank == 0 else None"
    assert [one[0][0][1] for one in found if one] == [
        f"if mm is not None and step:  # {kept}", "if args.mm:", "if step % every:",
    ]  # fmt: skip


AWKWARD = (
    """\
def f(a,
      b):
    """
    + '"""'
    + """Not code:
for x in y:
  if rank == 0:
"""
    + '"""'
    + """
    text = "for z in (" # if rank == 1:
    while a: b()
    if rank == 0: barrier()
    if rank == 1: values = {1: 2}[1:]
    if (rank == 2 and
        a):
        call(
    1, {2: 3}
        )
    match a:
        case 1:
            for y in z: \\
                g(y)
\tif tab:
\t\tsave()
    x[1:2] = lambda: 3
    return f(
"""
)


@pytest.mark.parametrize(
    ("line", "around"),
    [
        (7, []),
        (8, [8]),
        (9, [9]),
        (10, [10]),
        (14, [11]),
        (19, [18]),
        (21, [20]),
        (22, []),
        (23, []),
    ],
)
def test_strings_brackets_and_blocks_in_one_line(line: int, around: list[int]) -> None:
    found = blocks.around(blocks.statements(AWKWARD.encode()), line)
    assert [first for first, _, other in found if other is not None] == around


@pytest.mark.parametrize(
    "source",
    [
        b"def f(:\n",
        b"x = 1\0\n",
        b"(" * 500_000,
        b'"' * 500_001,
        b"'\\" * 250_000,
        b"\xff\n" * 90_000,
        b"a" + b".b" * 250_000,
        b" " * 500_000 + b"if x:\n",
        b"if x:\n" * 80_000,
        b'"""' * 160_000,
    ],
    ids=range(10),
)
def test_a_file_of_any_kind_is_gone_through_quickly(source: bytes) -> None:
    began = time.process_time()
    lines = blocks.statements(source)
    for number in (1, 2, 70_000):
        blocks.around(lines, number)
    assert time.process_time() - began < 5.0


def test_own_lines_are_told_what_they_stand_in(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.replace("loader:", "fetch(token='hf_abcdefghijklmnop'):"))
    mounts = [procfs.Mount(1, "0:1", "/", "ext4", "x")]
    me = os.getpid()
    # somebody edited it since the process read it
    assert sources.around(me, str(file), 9, mounts) is None
    os.utime(file, (0, 0))
    both = sources.around(me, str(file), 15, mounts)
    assert both is not None
    found = both[0]
    assert [line for line, _ in found] == [2, 3, 5, 10]
    assert [text for _, text in found[2:]] == [
        "else: if ( rank == 0 and batch ):",
        "else: elif rank == 1:",
    ]
    assert "hf_abcdefghijklmnop" not in found[1][1]
    network = procfs.Mount(1, "0:1", str(tmp_path), "nfs4", "x")
    assert sources.around(me, str(file), 9, [*mounts, network]) is None


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("def warned(self, number: int, _frame: object) -> None:", True),
        ("def handler(signum, frame):", True),
        ("def on_term(_, stack=None):", True),
        ("async def stop(sig, f):", True),
        ("def add(self, video, frame):", False),
        ("def warned(self):", False),
    ],
)
def test_the_head_of_what_handles_signals_is_told(tmp_path: Path, head: str, told: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"import signal\n{head}\n    if rank:\n        save()\n")
    os.utime(file, (0, 0))
    found = sources.around(os.getpid(), str(file), 4, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    assert found == ([*([(2, head)] if told else []), (3, "if rank:")], [])


RING = """
class Ring:
    def start(self, block):
        {start}
    # work = dist.isend(block)

    def wait(self):
        for work in self.pending:
            work.wait()


def reduce(flat):
    return dist.all_reduce(flat, async_op={later})
"""


@pytest.mark.parametrize(
    ("start", "later", "made"),
    [
        ("self.pending = dist.batch_isend_irecv(ops)", "True", True),
        ("ops = [dist.P2POp(dist.irecv, block, self.previous)]", "False", True),
        ("self.pending.append(dist.isend(block, self.next))", "True", True),
        # in one class both: nobody knows which of them is waited for
        ("self.pending = [irecv(block), all_reduce(block, async_op=True)]", "False", False),
        ("self.pending = exchange(block)", "True", False),
        ("self.pending = exchange(block)", "False", False),
    ],
)
def test_what_starts_the_sends_that_a_line_waits_for_is_told(
    tmp_path: Path, start: str, later: str, made: bool
) -> None:
    file = tmp_path / "ring.py"
    file.write_text(RING.format(start=start, later=later))
    os.utime(file, (0, 0))
    found = sources.around(os.getpid(), str(file), 9, [procfs.Mount(1, "0:1", "/", "ext4", "x")])
    own = [(8, "for work in self.pending:")]
    assert found == ([*own, *([(4, f"made: {start}")] if made else [])], [])
