"""The numerics pane of a rank, and who else has a file open: shown when there is something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop.terminal.spans import plain_lines
from hangtop.views.overview import verdict_lines
from hangtop.views.ranks.ranks import RankRows
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.numerics import First, Frame, Measure, Numerics
from hangtop_core.model.updates import Update
from hangtop_core.report.diagnosis import diagnosis_text
from support.player import app_for, keys, picture, player_of
from support.record import load

if TYPE_CHECKING:
    from typing import Any


replace = msgspec.structs.replace
SIZE = (120, 36)


def with_inf(name: str = "skip") -> Update:
    """A recording, as of a skipped collective, in which rank 2 has seen an inf."""
    update = load(name)
    [job] = update.snapshot.jobs
    call = {"batch": 41, "module": "layers.3.mlp", "module_class": "M\x1b[2Jlp", "root": "Net"}
    rows = (
        Measure("input", "input[0]", (3, 8), 0.5, 2e4),
        Measure("output", "output", (3,), 1.0, "inf"),
    )
    frame = Frame(**call, file="/w/net.py", line=88, measures=rows)
    first = First(
        **call,
        file="/w/net.py",
        line=88,
        what="inf",
        role="output",
        tensor="output",
        at=update.snapshot.at - 90,
        frames=(frame,),
    )

    def told(rank: Any) -> Any:
        firsts = (first,) if rank.rank == 2 else ()
        one = Numerics(
            rank.rank, rank.node, rank.process.pid, "/run/numerics/r.jsonl", firsts=firsts
        )
        return replace(rank, numerics=one)

    job = replace(job, ranks=tuple(told(rank) for rank in job.ranks))
    snapshot = replace(update.snapshot, jobs=(job,))
    return Update(snapshot, {job.key: diagnose(snapshot, job)})


async def test_a_rank_shows_what_it_saw_and_the_calls_before() -> None:
    update = with_inf()
    async with app_for(update).run_test(size=SIZE) as pilot:
        text = await keys(pilot)
        assert "◀ missing-collective, inf at batch 41" in text
        text = await keys(pilot, "3")
        assert "NUMERICS  rank 2" in text
        assert "inf at batch 41" in text
        assert "activation: inf in output of layers.3.mlp (Mlp)" in text
        text = await keys(pilot, "tab", "tab", "tab", "tab", "z")
        assert "layers.3.mlp (Mlp)  batch 41  net.py:88" in text
        assert "5.00e-01   2.00e+04  input[0]  3x8" in text
        assert "1.00e+00        inf  output  3" in text
        text = await keys(pilot, "z", "k")
        assert "NUMERICS  rank 1" in text
        assert "first of the job: rank 2: inf in output" in text
        assert "no inf or nan" in text


def test_a_verdict_has_it_among_its_evidence() -> None:
    [diagnosis] = with_inf().diagnoses.values()
    [verdict] = diagnosis.verdicts
    told = [one for one in verdict.evidence if one.source == "numerics"]
    assert [(one.rank, one.text) for one in told] == [
        (2, "saw inf in output of layers.3.mlp (Mlp) at batch 41, 1:30 ago")
    ]
    assert verdict.next_steps[0].startswith("look for a branch")


def test_it_is_told_of_a_job_that_gets_on() -> None:
    update = with_inf("progressing")
    [job], [diagnosis] = update.snapshot.jobs, update.diagnoses.values()
    assert diagnosis.state == "progressing"
    assert "\nNumbers: rank 2 saw inf in output of layers.3.mlp" in diagnosis_text(diagnosis)
    text = plain_lines(verdict_lines(update.snapshot, job, diagnosis))
    assert "note  rank 2 saw inf in output of layers.3.mlp (Mlp) at batch 41" in text
    assert "Nothing to blame" not in text
    first, *others = RankRows().take(update.snapshot, job, diagnosis, update.snapshot.at)
    assert (first.rank.rank, first.why) == (2, "saw inf at batch 41")
    assert not any("inf" in one.why for one in others)


async def test_without_numerics_there_is_no_pane() -> None:
    async with app_for(load("skip")).run_test(size=SIZE) as pilot:
        assert "NUMERICS" not in await keys(pilot, "3")


async def test_who_else_has_an_open_file() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "3", "o")
        assert "choose an open file first" in text
        await keys(pilot, "tab", "tab", "o")
        await pilot.pause()
        [(node, pid, fd)] = [about for name, about in player_of(app).asked if name == "holders"]
        assert (node, pid) == ("node1", 4004)
        text = picture(app)
        assert f"fd {fd} of rank 2 is /data/x" in text
        assert "rank 1 (pid 4003, state S) has the other end: fd 9, reading and writing" in text
        assert "2 processes of others could not be looked into" in text
        assert "asking who else" not in text
