"""`hangtop run`: what it sets, how it ends, how it passes signals on. No torch needed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.main import main
from hangtop_core.errors import UsageError
from hangtop_core.tools import prepare
from hangtop_hook import numericsfile
from hangtop_hook.numericsfile import Settings
from support.documents import misfits
from support.processes import PATIENCE, all_pids, command_line, wait_until
from support.pythons import python_of

if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]

OUTSIDE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "HANGTOP_RUN_DIR", "HANGTOP_RANK_PID")
SIGNALS = """
import signal, sys, time
got = []
def note(number, _):
    got.append(signal.Signals(number).name)
    print(*got, flush=True)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, note)
print("ready", flush=True)
while "SIGUSR1" not in got:
    time.sleep(0.01)
sys.exit(5)
"""


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)


def start(run: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hangtop", "run", "--dir", str(run), "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
        start_new_session=True,
    )


def run(directory: Path, *command: str, **variables: str) -> tuple[int, str, str]:
    process = start(directory, *command, **variables)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_print_env_is_for_a_shell_or_for_programs(tmp_path: Path, capsys: Capture) -> None:
    directory = tmp_path / "a run's dir"
    assert main(["run", "--print-env", "--dir", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    exported = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert all(line.startswith("export ") for line in lines)
    options = ["--json", "--sync-cuda", "--hide-gpus"]
    assert main(["run", "--print-env", *options, "--dir", str(directory)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == "hangtop.run-env/1"
    assert misfits(document) == []
    assert document["environment"] == {
        **exported,
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert "NCCL 2.14.3" in captured.err
    assert exported["HANGTOP_RUN_DIR"] == str(directory)
    first = Path(exported["PYTHONPATH"].split(":")[0])
    assert (first / "sitecustomize.py").exists()
    assert sorted(p.name for p in first.iterdir()) == ["hangtop_hook", "sitecustomize.py"]
    assert (directory.stat().st_mode & 0o777) == 0o700
    assert exported["TORCH_FR_BUFFER_SIZE"] == "2000"


def test_looking_for_inf_and_nan_is_asked_for_by_a_variable(
    tmp_path: Path, capsys: Capture
) -> None:
    command = ["run", "--print-env", "--json", "--dir", str(tmp_path / "r")]
    assert main(command) == 0
    assert "HANGTOP_NUMERICS" not in json.loads(capsys.readouterr().out)["environment"]
    assert not (tmp_path / "r" / "numerics").exists()
    options = ["--trace-batches", "1,3-5", "--abort-after-batch", "6", "--overflow", "abort"]
    assert main([*command, "--detect-overflow", *options, "--frames", "9"]) == 0
    environment = json.loads(capsys.readouterr().out)["environment"]
    settings = Settings(9, ((1, 1), (3, 5)), 6, stop=True)
    assert numericsfile.from_environment(environment) == settings
    assert (tmp_path / "r" / "numerics").is_dir()
    for wrong in ("5-3", "x", "-1", "1,,2"):
        with pytest.raises(SystemExit):
            main([*command, f"--trace-batches={wrong}"])
        assert "argument --trace-batches" in capsys.readouterr().err


def test_without_dir_every_run_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["run", "--print-env"]) == main(["run", "--print-env"]) == 0
    assert len(list((tmp_path / "hangtop" / "runs").iterdir())) == 2
    assert capsys.readouterr().out.count("HANGTOP_RUN_DIR") == 2


def test_a_run_that_wrote_nothing_leaves_no_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["run", "--", "true"]) == 0
    assert list((tmp_path / "hangtop" / "runs").iterdir()) == []
    assert "nothing is left" in capsys.readouterr().err


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="others"):
        prepare.make(tmp_path, prepare.Parts())
    with pytest.raises(UsageError, match="colon"):
        prepare.make(tmp_path / "a:b", prepare.Parts())


@pytest.mark.parametrize("arguments", [["run"], ["run", "--"], ["run", "--json", "--", "ls"]])
def test_wrong_usage(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    assert "hangtop: " in capsys.readouterr().err


def test_the_interpreter_is_found_through_its_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\n")
    env = tmp_path / "accelerate"
    env.write_text("#!/usr/bin/env python3\n")
    shell = tmp_path / "launch"
    shell.write_text("#!/bin/sh\n")
    for path in (script, env, shell):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    found = prepare.interpreter(["python3"])
    assert found is not None
    assert prepare.interpreter(["torchrun", "train.py"]) == sys.executable
    assert prepare.interpreter(["accelerate", "launch", "train.py"]) == found
    assert prepare.interpreter(["env", "A=1", "python3", "train.py"]) == found
    assert prepare.interpreter(["launch", "train.sh"]) is None
    assert prepare.interpreter(["no-such-program"]) is None


def test_only_open_mpi_needs_to_be_told_what_to_hand_on(tmp_path: Path) -> None:
    for name, says in (("mpirun", "mpirun (Open MPI) 4.1.4"), ("mpiexec", "HYDRA build details")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    one, other = (str(tmp_path / name) for name in ("mpirun", "mpiexec"))
    variables = {"PYTHONPATH": "/x", "HANGTOP_RUN_DIR": "/y"}
    exports = ["-x", "PYTHONPATH", "-x", "HANGTOP_RUN_DIR"]
    assert prepare.with_exports([one, "-n", "2", "p"], variables) == [one, *exports, "-n", "2", "p"]
    assert prepare.with_exports([other, "-n", "2"], variables) == [other, "-n", "2"]
    assert prepare.with_exports(["srun", "p"], variables) == ["srun", "p"]


@pytest.mark.parametrize("rest", ["head -c 1048576 /dev/zero", "sleep 1000"], ids=["much", "long"])
def test_a_program_that_does_not_come_to_an_end_about_its_version_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    monkeypatch.setattr(prepare, "_LOOK_S", PATIENCE if "head" in rest else 0.2)
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '2.10.0 Open MPI'\nexec {rest}\n")
    program.chmod(0o755)
    assert prepare.with_exports([str(program), "x"], {"A": "1"}) == [str(program), "x"]
    assert prepare.torch_version(str(program)) is None


def test_exit_status_is_that_of_the_command(tmp_path: Path) -> None:
    status, out, err = run(tmp_path / "r", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (status, out) == (7, "out\n")
    assert err.splitlines()[1] == "err"
    assert run(tmp_path / "r", "sh", "-c", "kill -KILL $$")[0] == -signal.SIGKILL
    status, _, err = run(tmp_path / "r", "no-such-program")
    assert status == 127
    assert "cannot start no-such-program: No such file" in err


def test_a_run_within_a_run_adds_nothing(tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "hangtop", "run", "--dir", str(tmp_path / "inner"), "--"]
    code = "import os; print(os.environ['HANGTOP_RUN_DIR']); raise SystemExit(9)"
    status, out, err = run(tmp_path / "outer", *inner, sys.executable, "-c", code)
    assert (status, out) == (9, f"{tmp_path / 'outer'}\n")
    assert "already a prepared run" in err
    assert not (tmp_path / "inner").exists()


def test_print_env_works_within_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HANGTOP_RUN_DIR", "/outer")
    assert main(["run", "--print-env", "--dir", str(tmp_path / "r")]) == 0
    assert f"export HANGTOP_RUN_DIR={tmp_path / 'r'}\n" in capsys.readouterr().out


def test_each_signal_reaches_the_command_once(tmp_path: Path) -> None:
    """SIGTERM goes to hangtop alone, SIGINT to the whole group as Ctrl-C does."""
    process = start(tmp_path / "r", sys.executable, "-c", SIGNALS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "SIGTERM SIGINT\n"
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, "SIGTERM SIGINT SIGUSR1\n")


def test_a_rank_without_torch_gets_its_log_and_its_label(tmp_path: Path) -> None:
    code = "import os, sys; print('out'); os.system('echo child'); sys.stderr.write('no end')"
    code += "; print([p for p in sys.path if p.endswith('/r/hook')], 'torch' in sys.modules)"
    directory = tmp_path / "r"
    status, out, err = run(directory, sys.executable, "-u", "-c", code, RANK="3", WORLD_SIZE="4")
    node = os.uname().nodename.split(".")[0]
    assert status == 0
    assert out.splitlines() == [f"[{node}:3]:{text}" for text in ("out", "child", "[] False")]
    assert f"[{node}:3]:no end\n" in err
    assert f"2 logs in {directory}" in err
    assert sorted(p.name for p in (directory / "logs").iterdir()) == [
        f"rank3-{node}.err",
        f"rank3-{node}.out",
    ]
    assert (directory / "logs" / f"rank3-{node}.out").read_text() == "out\nchild\n[] False\n"
    assert list((directory / "stacks").iterdir()) == []


def test_the_log_of_a_rank_goes_on_when_nobody_copies_it(tmp_path: Path) -> None:
    code = "import sys; print(1, flush=True); sys.stdin.readline(); print(2)"
    directory = tmp_path / "r"
    hangtop = [sys.executable, "-m", "hangtop", "run", "--dir", str(directory), "--"]
    process = subprocess.Popen(
        [*hangtop, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().endswith("]:1\n")
    script = str(directory / "hook" / "hangtop_hook" / "tee.py")
    [pid] = [pid for pid in all_pids() if script in command_line(pid)]
    os.kill(pid, signal.SIGKILL)
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    [log] = (directory / "logs").glob("*.out")
    assert log.read_text() == "1\n2\n"


@pytest.mark.parametrize("broken", ["", "raise RuntimeError('mine is broken')"])
def test_the_sitecustomize_of_the_user_still_runs(tmp_path: Path, broken: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text(f"print('mine', __name__)\n{broken}\n")
    path = f"{mine}:{os.environ['PYTHONPATH']}"
    code = "import sitecustomize; print(sitecustomize.__file__)"
    if broken:
        code = "print('goes on')"
    status, out, err = run(tmp_path / "r", sys.executable, "-c", code, PYTHONPATH=path)
    assert status == 0
    second = "goes on" if broken else str(mine / "sitecustomize.py")
    # hangtop itself is a Python that runs it, too, and may write what it printed at its end.
    assert sorted(out.splitlines()) == sorted(["mine sitecustomize", "mine sitecustomize", second])
    assert err.count("mine is broken") == (2 if broken else 0)


OLD_VERSIONS = ("2.7", "3.6", "3.8", "3.13")
"""Those that the hook is not for included."""


def test_any_python_starts_as_before(tmp_path: Path) -> None:
    found = {version: python_of(version) for version in OLD_VERSIONS}
    pythons = {version: str(python) for version, python in found.items() if python is not None}
    if not pythons:
        pytest.skip("no other Python on this machine")
    for version, python in pythons.items():
        status, out, err = run(tmp_path / "r", python, "-c", "print(1)", RANK="0", WORLD_SIZE="1")
        assert (status, out[-2:]) == (0, "1\n"), python
        assert all(line.startswith("hangtop: ") for line in err.splitlines()), err
        assert out.startswith("[") is (version in ("3.8", "3.13"))


def test_nothing_runs_on_after_a_rank_that_is_killed(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    status, _, _ = run(tmp_path / "r", sys.executable, "-c", code, RANK="0", WORLD_SIZE="1")
    assert status == -signal.SIGKILL
    assert wait_until(lambda: not any(str(tmp_path) in command_line(pid) for pid in all_pids()))
