"""The table of jobs that accuracy is measured on: complete, and of things that exist."""

from __future__ import annotations

from collections import Counter

from accuracy import nodes
from accuracy.places import INSIDE, OUTSIDE
from accuracy.run import HERE
from accuracy.table import JOBS
from hangtop_core.analysis.verdict.rules import RULES


def test_each_job_has_a_name_of_its_own_and_says_what_happens() -> None:
    names = Counter(job.name for job in JOBS)
    assert [name for name, count in names.items() if count > 1] == []
    assert [job.name for job in JOBS if not job.what] == []


def test_scripts_places_and_causes_of_all_jobs_exist() -> None:
    scripts = {job.command.split()[0] for job in JOBS}
    assert [one for one in scripts if not (HERE / "jobs" / one).is_file()] == []
    expected = {cause for job in JOBS if job.cause for cause in job.cause.split("|")}
    assert expected <= {rule.cause for rule in RULES}
    assert {job.inside for job in JOBS} <= {"", *INSIDE, *nodes.BEFORE}
    assert {job.outside for job in JOBS} <= {"", *OUTSIDE, *nodes.AFTER}


def test_only_who_was_kept_out_can_have_been_missed() -> None:
    assert [job.name for job in JOBS if job.missed and not job.kept] == []
