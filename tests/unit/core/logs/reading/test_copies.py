"""Lines that a launcher has copied from the file of a rank: they are shown and counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.reading.files import find, read_all
from hangtop_core.logs.reading.follow import Follower
from hangtop_core.logs.reading.lines import Choice, Kept

if TYPE_CHECKING:
    from pathlib import Path

LOGGED = (
    "ERROR could not step\nTraceback (most recent call last):\n"
    '  File "/a/train.py", line 3, in step\n    x()\nKeyError: 1\n'
)
HOOK = "[rank{}]: Traceback (most recent call last):\n[rank{}]: ValueError: 2\n"


def torchrun(folder: Path, labels: tuple[str, ...], nodes: tuple[int, ...] = (0, 1)) -> None:
    """What torchrun --tee --log-dir writes on nodes of two ranks, and what it prints there."""
    printed = []
    for node, label in enumerate(labels):
        for local in (0, 1):
            rank = 2 * node + local
            out, err = "step 1\nstep 2\n", LOGGED + HOOK.format(rank, rank)
            base = folder / f"job_{node}" / "attempt_0" / str(local)
            if node in nodes:
                base.mkdir(parents=True)
                (base / "stdout.log").write_text(out)
                (base / "stderr.log").write_text(err)
            printed += [f"[{label}{local}]:{line}\n" for line in (out + err).splitlines()]
    (folder / "train.out").write_text("".join(printed))


LABELS = [("n1:", "n2:"), ("default", "default"), ("default",), ("n1:",)]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("nodes", [(0, 1), (1,), (0,)])
def test_no_line_is_shown_twice(
    tmp_path: Path, labels: tuple[str, ...], nodes: tuple[int, ...]
) -> None:
    torchrun(tmp_path, labels, nodes)
    kept = Kept()
    files = read_all(find([str(tmp_path)])[0], keep=kept.add)
    texts = [one.text for one in kept.shown(files, Choice())]
    assert texts.count("step 1") == texts.count("KeyError: 1") == 2 * len(labels)
    assert texts.count("ValueError: 2") == 2 * len(labels)


@pytest.mark.parametrize("labels", LABELS)
def test_no_error_counts_twice(tmp_path: Path, labels: tuple[str, ...]) -> None:
    torchrun(tmp_path, labels)
    judged = judge(read_all(find([str(tmp_path)])[0]))
    folds = [one for one in judged.folds() if one.record.code == "traceback"]
    assert [sum(r.count for r in one.members) for one in folds] == [2 * len(labels)] * 2


def test_what_only_one_of_them_has_is_shown(tmp_path: Path) -> None:
    torchrun(tmp_path, ("n1:",))
    with (tmp_path / "train.out").open("a") as file:
        file.write("[n1:0]:step 1\n[n1:1]:only printed\n")
    with (tmp_path / "job_0" / "attempt_0" / "1" / "stdout.log").open("a") as file:
        file.write("only kept\n")
    kept = Kept()
    files = read_all(find([str(tmp_path)])[0], keep=kept.add)
    texts = [one.text for one in kept.shown(files, Choice())]
    assert texts.count("step 1") == 3
    assert texts.count("only printed") == texts.count("only kept") == 1


def test_what_is_followed_comes_once_whoever_writes_it_first(tmp_path: Path) -> None:
    own, log = tmp_path / "job_0" / "attempt_0" / "1" / "stdout.log", tmp_path / "train.out"
    own.parent.mkdir(parents=True)
    own.write_text("")
    log.write_text("[n1:0]:x\n[n1:1]:y\n")
    follower = Follower([str(tmp_path)], Choice())
    follower.poll()
    texts = []
    for path, line in ((own, "a"), (log, "[n1:1]:a"), (log, "[n1:1]:b"), (own, "b"), (own, "b")):
        with path.open("a") as file:
            file.write(f"{line}\n")
        texts += [one.text for one in follower.poll()[0]]
    follower.close()
    assert texts == ["a", "b", "b"]
