"""Whatever others call themselves: a shell runs exactly the words of what people paste."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import hangtop
import hangtop_core
from hangtop.cli.commands.logs import tell_recorders
from hangtop.cli.jobs.observe import choose
from hangtop_core.analysis.verdict.steps import spelt, tails
from hangtop_core.attach.clusters import kube
from hangtop_core.attach.slurm import slurm_reasons
from hangtop_core.attach.ways import reasons
from hangtop_core.attach.ways.command import CommandLauncher, Template
from hangtop_core.attach.ways.reasons import Fix, Slot, filled
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.model.snapshot import Node
from hangtop_core.text.commands import Command, Sign, is_shown, operand, shown, spelt_or_why
from support.build import World
from support.record import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from hangtop_core.attach.connect.launcher import ByHand

NASTY = (
    "'", '"', "$(id)", "`id`", ";", "&&", "|", "\\", "*", "?", "~", "#", "!", "a=b", "{a,b}", "",
    "-x", "--", "a b", " a", "$HOME", ">x", "é", "日本", "a\nb", "a\0b", "\x1b]52;c;eA==\x07",
    "\u202e", "a  b", "%h",
)  # fmt: skip
WORDS = st.one_of(st.text(max_size=12), st.sampled_from(NASTY))
TELL = "tell() { printf '%s\\0' \"$@\"; printf '\\1\\0'; }\n"
Pasted = tuple[str, list[list[str]]]
"""A text, and the commands that it stands for; none where it is refused."""


def ran(text: str) -> list[list[str]]:
    """Every command that a shell runs for a text, which runs nothing but `tell`."""
    names = ("hangtop", "ssh", "env", "srun", "tail", "kubectl", "getent", "ping", "scontrol")
    names += ("squeue", "sacct", "pdsh")
    script = TELL + "".join(f'{name}() {{ tell {name} "$@"; }}\n' for name in names)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{script}{text}"],
        capture_output=True, timeout=20, check=False, env={"PATH": "/nowhere"},
    )  # fmt: skip
    assert done.stderr == b"", (text, done.stderr)
    found: list[list[str]] = [[]]
    for word in done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        if word == "\1":
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def of_fixes(word: str) -> Iterator[Pasted]:
    """Fixes of logins, with the word in every place that is filled in."""
    known = (*reasons.TABLE, *reasons.PDSH, *reasons.COMMANDS, *slurm_reasons.TABLE)
    for fix in (one.fix for one in (*known, *kube._ENDINGS)):
        if not isinstance(fix, Fix) or "ssh-keygen" in fix.words:  # no function has a dash
            continue
        names = [one.name for one in fix.words if isinstance(one, Slot)]
        values = dict.fromkeys(names, ("tell", word)) | {"node": (word,), "job": (word,)}
        step = filled(fix, values)
        assert isinstance(step, Command)
        parts: list[list[str]] = [[]]
        for one in step.words:
            if one is Sign.AND:
                parts.append([])
            else:
                parts[-1].append(str(one))
        argv = [part[1:] if part[0] == "tell" else part for part in parts]
        yield shown(step).command, argv


def of_ways(word: str) -> Iterator[Pasted]:
    """Commands of hangtop's own for a node that is reached by what a person has given."""
    login = Login(init=word) if word else Login()
    ways: Sequence[ByHand] = (
        SshLauncher("n1", login).by_hand,
        CommandLauncher("n1", login, Template("env %h")).by_hand,
    )
    for way in ways:
        node = Node("n1", "ready", **{k: v or "" for k, v in way.stored().items()})
        step = spelt(Command("n1", ("hangtop", "dump", "--pid", 7)), {"n1": node})
        yield step.command, [["hangtop", "dump", *way.options, "--pid", "7"]]
    step = SshLauncher("n1", login).explain(9, "", False).fix
    assert isinstance(step, Command)
    yield shown(step).command, [[str(one) for one in step.words]]


def of_ranks(word: str) -> Iterator[Pasted]:
    """Files that a rank prints to."""
    world = World()
    world.waiters(1)
    rank = world.ranks[0]
    path = f"/log/{word}"
    for words in tails(replace(rank, process=replace(rank.process, outputs=(path,)))):
        yield spelt(Command("n1", words), {}).command, [["tail", "-n", "50", path]]


def of_jobs(word: str, told: Any) -> Iterator[Pasted]:
    """Keys of jobs, as they are given for --job-key."""
    snapshot = load("stopped").snapshot
    (job,) = snapshot.jobs
    choose(replace(snapshot, jobs=(job, replace(job, key=word))), None)
    key = told().err.partition("--job-key: ")[2].rpartition(" (")[0]
    is_refused = key.startswith("(no command")
    yield "" if is_refused else f"hangtop --job-key {key}", [["hangtop", "--job-key", word]]


def of_folders(word: str, told: Any, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Pasted]:
    """Folders that hold recorders."""
    name = word.replace("/", "_").replace("\0", "_")
    if name in ("", ".", ".."):
        return
    patch.chdir(folder)
    Path(operand(name), "flight").mkdir(parents=True, exist_ok=True)
    Path(operand(name), "flight", "ended_rank_0").touch()
    tell_recorders([name])
    text = told().err.partition("which rank waited for which: ")[2].removesuffix("\n")
    yield "" if text.startswith("(no command") else text, [["hangtop", "flight", operand(name)]]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(word=WORDS)
@example(word="it's; touch x")
@example(word="-x")
@example(word="a\nb")
@example(word="")
def test_a_shell_runs_exactly_the_words(
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:
        word = "\udc80"
    each = [
        *of_fixes(word),
        *of_ways(word),
        *of_ranks(word),
        *of_jobs(word, capsys.readouterr),
        *of_folders(word, capsys.readouterr, tmp_path, monkeypatch),
    ]
    given_out = [(text, argv) for text, argv in each if text]
    assert all(is_shown(text) or text.isprintable() for text, _ in given_out)
    assert len(given_out) > 10 or not is_shown(word)
    expected = [argv for _, argvs in given_out for argv in argvs]
    assert ran("\n".join(text for text, _ in given_out)) == [one or [""] for one in expected]


def test_words_are_spelt_for_a_shell_in_one_module() -> None:
    """What is quoted elsewhere, or put together as text, is found by nobody who looks here."""
    home = Path(hangtop_core.__file__).with_name("text") / "commands.py"
    packages = (Path(hangtop_core.__file__).parent, Path(hangtop.__file__).parent)
    quoting = re.compile(r"shlex\.(quote|join)|from shlex")
    files = (file for package in packages for file in package.rglob("*.py"))
    assert [file for file in files if quoting.search(file.read_text())] == [home]


def test_what_has_no_spelling_says_so() -> None:
    assert spelt_or_why(("ls", "a\0b")).startswith("(no command")
