"""Logs of real jobs: torchrun, mpirun, pdsh, and of ranks that cannot reach their store."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import main
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from support.jobs import run_hangtop
from support.launch import SUPPORT, free_port
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.model.updates import Update

pytestmark = pytest.mark.real

SCRIPT = str(SUPPORT / "logging_job.py")
CAUGHT = "ValueError: batch 1 is empty"
SOON = ("--hang-after", "5", "--observe", "1")


@dataclass
class Ran:
    """A job of torchrun that has failed, and what was seen of it meanwhile."""

    console: Path
    folder: Path
    last: Update | None = None


@contextmanager
def printing(path: Path, *argv: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prints to a file, ended at the end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with path.open("wb") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def no_store(stop: threading.Event, listener: socket.socket) -> None:
    """A program that is no store, and answers whoever connects."""
    listener.settimeout(0.2)
    while not stop.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(2)
            try:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                continue


@dataclass
class Lonely:
    """A rank that tries to reach a store."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path


@contextmanager
def rank_without_store(folder: Path, port: int, seconds: float) -> Iterator[Lonely]:
    """Rank 1 of 2, which tries for some seconds."""
    path = folder / f"{port}.log"
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, SCRIPT, "init", str(seconds)]
    with printing(path, *argv, RANK="1", WORLD_SIZE="2", **where) as process:
        yield Lonely(process, port, path)


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lonely, Lonely]]:
    """One whose store's port another program has, and one whose store is not there."""
    folder = tmp_path_factory.mktemp("lonely")
    stop = threading.Event()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=no_store, args=(stop, listener))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        yield (
            stack.enter_context(rank_without_store(folder, listener.getsockname()[1], 600)),
            stack.enter_context(rank_without_store(folder, free_port(), 3)),
        )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, lonely: tuple[Lonely, Lonely]) -> Ran:
    """Rank 1 of 4 has an exception, which hangtop sees happen; the others start meanwhile."""
    folder = tmp_path_factory.mktemp("ran")
    job = Ran(folder / "tee.out", folder / "logs")
    go = folder / "go"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
    torchrun += [f"--master-port={free_port()}", "--tee=3", f"--log-dir={job.folder}", SCRIPT]
    with printing(job.console, *torchrun, "raise", str(go)) as launcher:
        options = Options(interval=0.5, pids=(launcher.pid,))
        with Session(options, diagnose) as session:
            assert session.wait(_prints, PATIENCE), session.latest
            assert wait_until(lambda: CAUGHT in job.console.read_text()), job.console.read_text()
            go.touch()
            job.last = session.wait(_told, PATIENCE)
            job.last = job.last or session.latest
        launcher.wait(PATIENCE)
    return job


def _prints(update: Update) -> bool:
    """Whether all ranks are there and their outputs known."""
    ranks = [rank for job in update.snapshot.jobs for rank in job.ranks]
    return len(ranks) == 4 and all(
        any(path.endswith("stderr.log") for path in rank.process.outputs)
        and any(thread.name == "gloo_tcp_loop" for thread in rank.process.threads)
        for rank in ranks
    )


def _told(update: Update) -> bool:
    """Whether rank 1 is blamed, by what it has printed."""
    verdicts = [one for diagnosis in update.diagnoses.values() for one in diagnosis.verdicts]
    return (
        bool(verdicts)
        and [culprit.rank for culprit in verdicts[0].culprits] == [1]
        and any(one.source == "log" for one in verdicts[0].evidence)
    )


def first(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The first error that `hangtop logs` finds."""
    assert main(["logs", "--json", *arguments]) == 10
    told = json.loads(capsys.readouterr().out)
    beside = {name: told[name] for name in ("follows", "survived")}
    return {**told["first"], **beside, "verdict": told["verdicts"][0]}


def test_the_first_error_of_a_torchrun_job(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (ran.console, ran.folder):
        found = first(capsys, str(place))
        assert (found["ranks"], found["text"]) == ([1], "KeyError: 'labels'")
        assert found["where"].endswith("(step)")
        assert found["verdict"]["cause"] == "rank-exited"
        assert [culprit["rank"] for culprit in found["verdict"]["culprits"]] == [1]
        assert [(one["ranks"], one["text"]) for one in found["survived"]] == [([2], CAUGHT)]
        lost = {r for one in found["follows"] if one["part"] == "cascade" for r in one["ranks"]}
        assert lost <= {0, 2, 3}
        assert lost


def test_pdsh_around_it_changes_nothing(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pdsh = shutil.which("pdsh")
    if pdsh is None:
        pytest.skip("no pdsh")
    path = tmp_path / "pdsh.out"
    with path.open("wb") as file:
        command = [pdsh, "-R", "exec", "-w", "node-7", "cat", str(ran.console)]
        subprocess.run(command, stdout=file, check=True, timeout=PATIENCE)
    found = first(capsys, str(path))
    assert (found["ranks"], found["nodes"]) == ([1], ["node-7"])


def test_hangtop_saw_who_failed_first_and_read_why(ran: Ran) -> None:
    """The job has ended by then: its logs are known by what its processes printed to."""
    assert ran.last is not None
    (diagnosis,) = ran.last.diagnoses.values()
    verdict = diagnosis.verdicts[0]
    assert verdict.cause == "rank-exited"
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert "KeyError: 'labels' at logging_job.py" in verdict.summary
    assert any("KeyError: 'labels'" in one.text for one in verdict.evidence)


def test_mpirun_tags_its_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun")
    code = "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '2': {}['lost']\n"
    code += "print('step', flush=True); time.sleep(0.2)"
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--tag-output", "-n", "3"]
    path = tmp_path / "mpi.out"
    with path.open("wb") as file:
        subprocess.run(
            [*command, sys.executable, "-c", code],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=PATIENCE,
        )
    found = first(capsys, str(path))
    assert (found["ranks"], found["text"]) == ([2], "KeyError: 'lost'")


def test_a_program_that_is_no_store_is_told(
    ran: Ran, lonely: tuple[Lonely, Lonely], capsys: pytest.CaptureFixture[str]
) -> None:
    taken, _ = lonely
    assert wait_until(lambda: "Ping failed" in taken.log.read_text()), taken.log.read_text()
    done = run_hangtop("diagnose", "--json", "--pid", str(taken.process.pid), *SOON)
    told = json.loads(done.stdout)
    assert told["verdicts"], told
    verdict = told["verdicts"][0]
    assert (verdict["cause"], verdict["culprits"]) == ("store-port-taken", [])
    assert f"127.0.0.1:{taken.port}" in verdict["summary"]
    # The same from the log alone, which is found by the descriptors of the process.
    found = first(capsys, "--pid", str(taken.process.pid))
    assert (found["code"], found["verdict"]["cause"]) == ("T9", "store-port-taken")


def test_a_store_that_is_not_there_is_told(
    ran: Ran, lonely: tuple[Lonely, Lonely], capsys: pytest.CaptureFixture[str]
) -> None:
    _, closed = lonely
    closed.process.wait(PATIENCE)
    found = first(capsys, str(closed.log))
    assert found["verdict"]["cause"] == "store-unreachable"
    assert f"127.0.0.1:{closed.port}" in found["verdict"]["summary"]


def test_a_job_without_log_files_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert main(["logs", "--pid", str(process.pid)]) == 12
        told = capsys.readouterr().err
        assert "no log of rank 0: prints into a pipe" in told
        assert "--redirects" in told
    finally:
        process.kill()
        process.wait()
