"""`hangtop debug` and `hangtop core --take` on a job that `hangtop run` has started."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.recorder import workerserver
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.processes import PATIENCE, environment, is_alive, wait_until
from support.terminals import interrupted, read_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
pytest.importorskip("torch")
SOCKETS = Path(f"/tmp/hangtop-{os.getuid()}")
SCRIPT = SUPPORT / "debug_job.py"


def at_line(text: str) -> str:
    """A breakpoint by file and line: names mean nothing where a rank stands in a library."""
    return f"b {SCRIPT}:{SCRIPT.read_text().splitlines().index(text) + 1}"


STEP, FORGOTTEN = at_line("    double = number * 2"), at_line("    reader, writer = os.pipe()")


@dataclass
class Job:
    """The job, its ranks' process ids, and the files they write."""

    pids: dict[int, int]
    path: Path

    def steps(self) -> int:
        text = Path(f"{self.path}.steps").read_text()
        return int(text or 0)

    def goes_on(self) -> bool:
        """Whether rank 0 makes steps, and no thread of it is stopped."""
        before = self.steps()
        return wait_until(lambda: self.steps() > before + 3)

    def debug(self, rank: int, *lines: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hangtop", "debug", str(rank), *self.options()],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def options(self) -> list[str]:
        return ["--pid", *map(str, self.pids.values())]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("debug")
    path = directory / "job"
    run = [sys.executable, "-m", "hangtop", "run", "--dir", str(directory / "run"), "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"]
    script = [f"--master-port={free_port()}", str(SUPPORT / "debug_job.py"), str(path)]
    output = directory / "output.txt"
    with Started(*run, *torchrun, *script, output=output) as started:
        steps = Path(f"{path}.steps")

        def ready() -> bool:
            """Rank 0 makes steps, rank 1 waits, and rank 2 is at its prompt."""
            there = steps.exists() and steps.read_text() != ""
            at_prompt = "forgotten()" in output.read_text(errors="replace")
            return there and at_prompt and waits(ranks(started)[1])

        assert wait_until(ready), output.read_text()
        yield Job(ranks(started), path)


def ranks(started: Started) -> dict[int, int]:
    """Process ids of ranks, by their numbers."""
    pids: dict[int, int] = {}
    for pid in started.pids():
        number = environment(pid).get("RANK")
        if number is not None and "debug_job" in Path(f"/proc/{pid}/cmdline").read_text():
            pids.setdefault(int(number), pid)
    return pids


def waits(pid: int) -> bool:
    """Whether the main thread of a process waits for another thread of it."""
    return "futex" in Path(f"/proc/{pid}/wchan").read_text()


def descriptors(pid: int) -> list[str]:
    """What a process has open, but for the file that it writes with each step."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return sorted(one for one in found if not one.endswith(".steps"))


def sockets(pid: int) -> list[Path]:
    """At which a prompt in a process would be answered."""
    return list(SOCKETS.glob(f"debug-{pid}*"))


def test_what_is_open_of_a_prepared_job_is_open_for_its_user_alone(job: Job) -> None:
    """torch listens on the port of its store; of hangtop there are sockets of its user's alone."""
    assert stat.S_IMODE(SOCKETS.stat().st_mode) == 0o700
    for pid in job.pids.values():
        listening = workerserver.listening(pid)
        paths = [one.local for one in listening.unix if one.local]
        assert paths
        assert [path for path in paths if path.startswith(f"{SOCKETS}/")] == paths
        assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in paths)


def test_prompt_steps_and_leaves_nothing(job: Job) -> None:
    before = descriptors(job.pids[0])
    lines = ("p 6 * 7", STEP, "c", "n", "p double == number * 2", "cl", "c")
    done = job.debug(0, *lines)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "rank 0, process" in said
    assert ") 42\n" in said
    assert ") True\n" in said, said
    assert "left; it goes on" in said
    assert job.goes_on()
    assert descriptors(job.pids[0]) == before
    assert not sockets(job.pids[0])


@pytest.mark.parametrize(
    "typed",
    [
        {STEP: b"Breakpoint "},
        {STEP: b"(Pdb) ", "c": b"(Pdb) "},
        {FORGOTTEN: b"(Pdb) ", "c": b"without a prompt"},
    ],
    ids=["at the prompt", "at a breakpoint", "while it runs"],
)
def test_the_end_of_hangtop_lets_the_rank_go_on(job: Job, typed: dict[str, bytes]) -> None:
    """With a breakpoint set that would stop it again, and nobody to let it go on."""
    before = descriptors(job.pids[0])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "hangtop", "debug", "0", *job.options()],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            read_until(ours, b"(Pdb) ")
            for line, answer in typed.items():
                os.write(ours, f"{line}\n".encode())
                read_until(ours, answer)
            stood = job.steps()
        finally:
            process.kill()
        process.wait(PATIENCE)
        assert job.goes_on(), stood
    os.close(ours)
    assert wait_until(lambda: descriptors(job.pids[0]) == before), descriptors(job.pids[0])
    assert job.debug(0, "c").returncode == 0, "neither a prompt nor a tracer is left"


def test_a_rank_in_c_is_told_and_not_stopped_later(job: Job) -> None:
    """It waits in all_reduce: the request is withdrawn, so that nothing stops it when it comes."""
    done = job.debug(1)
    assert done.returncode == 1
    assert "did not come back to the interpreter" in done.stderr
    assert "all_reduce" in done.stderr, done.stderr
    assert "--native" in done.stderr
    assert not sockets(job.pids[1])


def test_a_breakpoint_left_in_the_code_is_told(job: Job) -> None:
    done = job.debug(2)
    assert done.returncode == 1
    assert "sits at a prompt already" in done.stderr
    assert "breakpoint" in done.stderr


def given_up(take: list[str], folder: Path) -> bool:
    """Whether a core is given up by Ctrl-C; it may be there before that has reached hangtop."""
    for _ in range(9):
        argv = [sys.executable, "-m", "hangtop", *take]
        code, _, told = interrupted(argv, b"writing the core of rank 1")
        if code == 130:
            return b"given up; the rank goes on" in told
        assert code == 0, told
        for core in folder.iterdir():
            core.unlink()
    return False


def test_a_core_of_a_live_rank(job: Job, tmp_path: Path) -> None:
    pytest.importorskip("pystack")
    options = ["--rank", "1", *job.options(), "--to", str(tmp_path)]
    refused = run_hangtop("core", "--take", *options)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert "stops the process" in refused.stderr
    assert not list(tmp_path.iterdir())
    assert given_up(["core", "--take", "--yes", *options], tmp_path)
    assert wait_until(lambda: not list(tmp_path.iterdir()))
    done = run_hangtop("core", "--take", "--yes", "--json", *options)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)["taken"]
    assert taken["running_again"]
    core = Path(taken["path"])
    try:
        assert core.stat().st_mode & 0o077 == 0
        (read,) = json.loads(run_hangtop("core", "--json", str(core)).stdout)["cores"]
    finally:
        core.unlink()
    assert (read["rank"], read["signal"]) == (1, 0)
    names = [frame["name"] for frame in read["threads"][0]["frames"]]
    assert "all_reduce" in names


def test_the_job_ends_well_after_all_that(job: Job) -> None:
    """Nobody was harmed: the collective is completed, with the right sum."""
    Path(f"{job.path}.end").touch()
    assert wait_until(lambda: Path(f"{job.path}.rank1").exists())
    assert wait_until(lambda: Path(f"{job.path}.rank1").read_text() == "3")
    assert wait_until(lambda: not is_alive(job.pids[1]))
