"""By which words a job is found."""

from __future__ import annotations

import pytest

from hangtop_core.model import Job
from hangtop_core.observing import answers_to


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("run 4711 gpu01:29500", True),
        ("gpu01:29500", True),
        ("29500", True),
        ("train.py", True),
        ("abc", True),
        ("run", False),
        ("gpu01", False),
        ("2950", False),
        ("", False),
    ],
)
def test_a_job_goes_by_its_key_its_port_its_name_and_its_run_id(word: str, found: bool) -> None:
    job = Job("run 4711 gpu01:29500", "train.py", "torchrun", "abc", 2, None)
    assert answers_to(job, word) == found
