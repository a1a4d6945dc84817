"""Words that somebody else may choose, in every place where they would reach a command line."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.slurm import slurm
from hangtop_core.attach.ways import subprocesses
from hangtop_core.attach.ways.command import CommandLauncher, Template
from hangtop_core.attach.ways.pdsh import PdshChannel
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.attach.ways.targets import check_name, expand, read_hostfile
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = [
    "a;reboot", "-oProxyCommand=touch x", "-l", "--", "$(reboot)", "${IFS}", "`id`", "a|b", "a&b",
    ">x", "<x", "'a", '"a', "a'b", "(a)", "{a,b}", "*", "?x", "~root", "#a", "!x", "^/etc/passwd",
    "/root/", "../x", "%h", "a\nb", "a\rb", "a\0b", "n\x1b[2J", "\u202en", "n\udc80", "x" * 300,
]  # fmt: skip
every = pytest.mark.parametrize("word", HOSTILE, ids=ascii)


@every
def test_it_is_no_node_user_program_or_job(word: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{word} slots=8\n", errors="surrogateescape")
    queue = f"7|7|7|0|root|RUNNING|{word}|None\n"
    places: dict[str, Callable[[], object]] = {
        "name": lambda: check_name(word, "-w"),
        "node set": lambda: expand(word),
        "exception": lambda: expand(f"n1,{word}"),
        "user": lambda: Login(user=word).check(),
        "python": lambda: Login(python=word).check(),
        "job": lambda: slurm.find_job(word),
        "hostfile": lambda: read_hostfile(hosts),
        "queue": lambda: slurm.find_job("7"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocesses, "run", lambda *_: subprocesses.Done(0, queue, ""))
        for place, use in places.items():
            made: object = None
            with suppress(UsageError):
                made = use()
            if made is None:
                continue
            if isinstance(made, Login):
                assert (place, word) in FINE
            else:
                # What combines node sets (`&`), or begins a new line of a host file.
                names = made.nodes if isinstance(made, slurm.SlurmJob) else made
                assert isinstance(names, tuple), (place, made)
                assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) for name in names), place


FINE = {("python", "/root/"), ("python", "../x"), ("python", "x" * 300), ("user", "x" * 300)}
"""Paths of programs, and names, that are one word of a command in any shell."""


def test_a_name_is_one_word_behind_the_options_however_a_node_is_reached() -> None:
    """Names may begin with a digit, hold a percent sign or a colon; all of it is the name."""
    login = Login(user="alice")
    for name in ("gpu07.cluster", "10.0.0.7", "fe80::1%eth0"):
        argv = SshLauncher(name, login).argv()
        assert argv[-3:-1] == ["--", name]
        assert argv[argv.index("-l") + 1] == "alice"
        argv = CommandLauncher(name, login, Template("env exec -i %h --")).argv()
        assert argv[:5] == ["env", "exec", "-i", name, "--"]
        if ":" in name:
            with pytest.raises(UsageError):
                PdshChannel([name], login, None)
            continue
        argv = PdshChannel([name], login, None).begin([name]).argv
        assert argv[argv.index("-w") + 1] == name
        assert (SshLauncher(name, login).by_hand.shell or ("",))[-1] == name
