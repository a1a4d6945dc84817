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


@pytest.mark.parametrize("word", ["gpu01/net 4026532:29500", "gpu01:29500", "29500"])
def test_a_job_in_a_container_goes_by_its_node_and_port(word: str) -> None:
    key = "gpu01/net 4026532:29500"
    job = Job(key, "train.py", "torchrun", None, 2, "localhost:29500", nodes=("gpu01",))
    assert answers_to(job, word)
    assert not answers_to(job, word.replace("gpu01", "gpu02").replace("29500", "29501"))
