"""What hangtop says of jobs of real frameworks: rank 1 of two hangs in a function of the user's.

`make test-frameworks` installs the versions of the lock and runs these. Where HANGTOP_FRAMEWORKS
names an environment that is ready, they are run with what that has. What was tried is noted in
`tried.json`, from which the pages have it.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from frameworks.shapes import SHAPES, Shape, arguments
from support.launch import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TRIED = HERE / "tried.json"
BINS = os.path.abspath(os.path.join(os.environ["HANGTOP_FRAMEWORKS"], "bin"))
LIMIT_S = 700
ROWS = 12
"""Rows in which two stacks stand once frames of libraries are folded; they have up to forty."""
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(LIMIT_S + 60)]


def versions(shape: Shape) -> str:
    """Return name and version of each package of a shape; skips the test where one is missing."""
    code = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    argv = [f"{BINS}/python", "-c", code, *shape.packages]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not installed: {', '.join(shape.packages)}")
    numbers = (number.partition("+")[0] for number in done.stdout.split())
    return ", ".join(map(" ".join, zip(shape.packages, numbers, strict=True)))


@pytest.fixture
def noted(request: pytest.FixtureRequest) -> Iterator[Shape]:
    """The shape of a test, whose outcome is noted."""
    shape: Shape = request.param
    entry = {"date": str(datetime.datetime.now(datetime.UTC).date()), "with": versions(shape)}
    failed = request.session.testsfailed
    yield shape
    right = request.session.testsfailed == failed
    tried = json.loads(TRIED.read_text()) if TRIED.exists() else {}
    tried[shape.name] = {**entry, "result": "right" if right else "wrong"}
    known = {one.name: tried[one.name] for one in SHAPES if one.name in tried}
    TRIED.write_text(json.dumps(known, indent=1) + "\n")


def observed(shape: Shape, folder: Path) -> None:
    """Start the job in a pid namespace, which ends with it; what hangtop says goes to a folder."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    argv = ["unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
    argv += [str(HERE / "inside.py"), str(folder)]
    argv += arguments(shape, BINS, str(HERE / "jobs"), free_port())
    path = os.pathsep.join([BINS, os.environ["PATH"]])
    with tempfile.TemporaryDirectory(prefix="fw-") as short:  # Ray's sockets allow no long path
        more = {"PATH": path, "TMPDIR": short, "RAY_TMPDIR": short, "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **more, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(argv, env=environment, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, (folder / "log.txt").read_text()[-3000:]


@pytest.mark.parametrize("noted", SHAPES, ids=lambda shape: shape.name, indirect=True)
def test_a_hang_of_rank_1(noted: Shape, tmp_path: Path) -> None:
    shape = noted
    observed(shape, tmp_path)
    text = (tmp_path / "diagnosis.json").read_text()
    diagnosis: dict[str, Any] = json.loads(text)
    job, first = diagnosis["job"], diagnosis["verdicts"][0]
    assert diagnosis["state"] == "hung"
    found = json.loads((tmp_path / "ranks.json").read_text())
    assert len(found["ranks"]) + len(found["unnumbered"]) == 2
    assert job["ranks_seen"] == [0, 1] or not shape.numbered
    assert job["launcher"] == shape.launcher
    hung = re.search(r"HANGS (\d+)", (tmp_path / "log.txt").read_text())
    assert hung
    culprits = [(one["rank"], one["pid"]) for one in first["culprits"]]
    numbers = (1,) if shape.numbered else (1, None)
    assert culprits in [[(number, int(hung[1]))] for number in numbers], first["summary"]
    assert first["cause"] in shape.causes, first["summary"]
    assert f"({shape.line})" in first["summary"]
    dump = (tmp_path / "dump.txt").read_text()
    rows = dump.partition(" RANKS ")[2].partition("\n\n")[0].splitlines()[1:]
    assert any(f"{shape.line} (" in row for row in rows), dump
    assert any(re.search(r"\[(0|pid\d+)\]$", row) for row in rows), dump
    assert re.search(r"(all_reduce|all_gather|backward) \(torch/", dump), dump
    assert len(rows) <= ROWS, dump
    assert re.search(r"… \d+ fra", dump), dump
