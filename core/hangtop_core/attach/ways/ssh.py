"""Starting the probe on a node by the system's ssh, with the user's own configuration.

Their config, agent, jump hosts, masters and Kerberos tickets are ssh's business. What is fixed
here keeps a screen from hanging on a prompt, and a node from reaching back: no prompts, no agent
or X11 forwarding, no port forwards, and dead connections end. Host keys are checked as the user's
configuration says; nothing here ever accepts one.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.launcher import ByHand, Ending, Wave
from hangtop_core.attach.ways import subprocesses
from hangtop_core.attach.ways.reasons import Context, explain_login
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean
from hangtop_probe.wire.boot import BOOT

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_ONCE = 32
"""Logins at the same time; `--fanout` sets another number."""
AT_ONCE_BEHIND_A_JUMP = 8
"""sshd refuses logins at random beyond ten at a time (MaxStartups 10:30:100)."""
HOLD_S = 3.0
"""A login that takes longer does not keep others waiting; behind a jump host it does."""
FAST_KEX = "-oKexAlgorithms=^curve25519-sha256"
"""Put first, before the post-quantum one; what the node offers still decides. Needs OpenSSH 8."""

_MAX_LOG = 65536
LEFT_S = 10.0
"""Seconds for which the log of an ssh that was left stays open; it is killed before (`Timing`)."""
_MAX_SETTINGS = 1 << 20
"""Bytes that `ssh -G` may print; it has some KB to say."""
_ASK_S = 5.0
_NEVER_THERE = "UNKNOWN port 65535"
"""In what ssh says when its proxy ended: the node itself has said nothing then."""
_NO_LOG = "Couldn't open logfile"
"""OpenSSH log.c, log_redirect_stderr_to."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?")
_PYTHON = re.compile(r"(~/|/)?[A-Za-z0-9_.][A-Za-z0-9_./+@:,=-]*")


class Login(Struct, frozen=True):
    """How to log in and start Python; the same for all nodes."""

    user: str | None = None
    python: str = "python3"
    init: str | None = None
    """A command of the user's for the node's shell; it must succeed."""
    sudo: bool = False
    connect_timeout: float = 10.0
    """Seconds."""
    fanout: int = AT_ONCE
    """Logins at the same time, at most."""
    fast_kex: bool = False
    """Agree on keys by X25519 alone: some 60 ms of processor less per login, but what is recorded
    today may be read by a quantum computer one day."""
    keep: bool = True
    """Without it nothing is left on the nodes, and py-spy is not sent."""

    def check(self) -> Login:
        """Return this login once its texts are what they should be.

        Raises:
            UsageError: when one is not.
        """
        if self.user is not None and not _USER.fullmatch(self.user):
            raise UsageError(f"--user: {clean(self.user, 80)!r} is no user name")
        if not _PYTHON.fullmatch(self.python):
            raise UsageError(
                f"--python: {clean(self.python, 80)!r} is no path of a program",
                "Give a path or a name without blanks or quotes: --python /opt/conda/bin/python3",
            )
        return self

    def options(self, node: str) -> list[str]:
        """Return the options of hangtop that reach a node so; nothing that goes without saying.

        They are for commands that are copied, and so short: what has its usual value is left out.
        Who has taken back on the command line what the config file says has to do that again.
        """
        words = ["-w", node]
        for option, value, usual in (
            ("-l", self.user, None),
            ("--python", self.python, Login().python),
            ("--init", self.init, None),
        ):
            words += [option, value] if value is not None and value != usual else []
        return words + (["--sudo"] if self.sudo else [])

    def exec_argv(self) -> list[str]:
        """Return what starts the boot, for a program that executes its arguments."""
        if self.init:
            return ["sh", "-c", self.shell_command()]
        sudo = ["sudo", "-n"] if self.sudo else []
        return [*sudo, self.python, "-I", "-S", "-u", "-c", BOOT]

    def trial_argv(self) -> list[str]:
        """Return what shows whether Python starts there, for a program that executes it."""
        if self.init:
            return ["sh", "-c", self.trial_command()]
        return self.trial_command().split()

    def trial_command(self) -> str:
        """Return the same for a shell."""
        trial = f"{'sudo -n ' if self.sudo else ''}{self.python} -V"
        return f"{self.init} && {trial}" if self.init else trial

    def trial_words(self) -> list[str]:
        """Return the same as the end of a command line whose words another shell gets."""
        return [self.trial_command()] if self.init else self.trial_command().split()

    def shell_command(self, pushed: str | None = None) -> str:
        """Return what starts the boot, for any shell; see `hangtop_probe.wire.boot.BOOT`.

        Args:
            pushed: of `bundle.pushed`, where nothing can be sent over stdin.
        """
        sudo = "sudo -n " if self.sudo else ""
        code, word = (BOOT, "") if pushed is None else (bundle.PUSHED, f" {pushed}")
        boot = f'exec {sudo}{self.python} -I -S -u -c "{code}"{word}'
        return f"{self.init} && {boot}" if self.init else boot


class Jumps:
    """Which nodes are behind a jump host, as the user's ssh configuration says.

    ssh is asked once for names that differ in digits only: a thousand nodes are not a thousand
    questions.
    """

    def __init__(self, user: str | None) -> None:
        self._user = user
        self._known: dict[str, str | None] = {}

    def of(self, node: str) -> str | None:
        """Return the jump host or proxy command of a node, or None."""
        kind = re.sub(r"\d+", "0", node)
        if kind not in self._known:
            self._known[kind] = jump_of(settings(node, self._user))
        return self._known[kind]


def jump_of(found: Mapping[str, str]) -> str | None:
    """Return the jump host or proxy command of some `settings`, or None."""
    told = (found.get(name, "none") for name in ("proxyjump", "proxycommand"))
    return next((value for value in told if value != "none"), None)


def settings(node: str, user: str | None) -> dict[str, str]:
    """Return what ssh would use for a node, as it says itself; nothing where it cannot say."""
    login = ["-l", user] if user is not None else []
    argv = ["ssh", "-G", *login, "--", node]
    try:
        done = subprocesses.run(argv, _ASK_S, _MAX_SETTINGS, os.environ)
    except (OSError, subprocess.TimeoutExpired, subprocesses.TooMuchOutputError):
        return {}
    lines = (line.partition(" ") for line in done.out.split("\n"))
    return {key: value for key, _, value in lines if value}


def port_of(found: Mapping[str, str]) -> int:
    """Return the port of some `settings`: 22 where they tell none, or none that there can be."""
    told = found.get("port", "")
    return int(told) if re.fullmatch(r"[0-9]{1,5}", told) and int(told) < 65536 else 22


class OwnWords:
    """What one ssh says itself, apart from what the node prints before and after the login.

    A banner that says "Permission denied" would be believed otherwise. ssh writes it to a file in
    memory, which it opens by its name in /proc. That of one that was left stays open for a while:
    it may have yet to open it, and the next file would have the same name.
    """

    possible = hasattr(os, "memfd_create")
    """Whether there are such files, and ssh could open them so far."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._left: list[tuple[float, int]] = []
        """When (monotonic) an ssh was left, and its file."""

    def __del__(self) -> None:
        self._close()
        for _, fd in self._left:
            os.close(fd)

    def begin(self) -> list[str]:
        """Return the options for the next ssh; none where there can be no such file."""
        now = time.monotonic()
        while self._left and now - self._left[0][0] >= LEFT_S:
            os.close(self._left.pop(0)[1])
        if self._fd is not None:
            self._left.append((now, self._fd))
            self._fd = None
        if not OwnWords.possible:
            return []
        try:
            self._fd = os.memfd_create("ssh", os.MFD_CLOEXEC)
        except OSError:
            return []
        return ["-E", f"/proc/{os.getpid()}/fd/{self._fd}"]

    def take(self) -> str | None:
        """Return what the last ssh has said, once; None where that is not known."""
        if self._fd is None:
            return None
        data = os.pread(self._fd, _MAX_LOG, 0)
        self._close()
        return data.decode("utf-8", "replace")

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class SshLauncher:
    """The probe at the other end of an ssh."""

    channel = None
    via = "ssh"

    def __init__(self, node: str, login: Login, jump: str | None = None) -> None:
        self._node = node
        self._login = login
        self._jump = jump
        self._log = OwnWords()

    @property
    def patience(self) -> float:
        """As long as the user said that logging in may take: the probe's start belongs to it."""
        return self._login.connect_timeout

    @property
    def node(self) -> str:
        """The name it is reached by."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """By the same ssh; the options are those that differ from what hangtop does by itself."""
        return ByHand(tuple(self.shell()), tuple(self._login.options(self._node)))

    @property
    def wave(self) -> Wave:
        """Few at once behind a jump host; its sshd counts them all as its own."""
        if self._jump is not None:
            at_once = min(self._login.fanout, AT_ONCE_BEHIND_A_JUMP)
            return Wave(f"jump {self._jump}", at_once, self._login.connect_timeout + 5)
        return Wave("ssh", self._login.fanout, HOLD_S)

    def argv(self) -> list[str]:
        """Return the ssh command; see ssh_config(5) for its options."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": f"{max(1, round(self._login.connect_timeout))}",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "2",
            "ClearAllForwardings": "yes",
            "PermitLocalCommand": "no",
            "RemoteCommand": "none",
        }
        argv = ["ssh", "-T", "-a", "-x", *self._log.begin()]
        argv += [f"-o{name}={value}" for name, value in options.items()]
        if self._login.fast_kex:
            argv.append(FAST_KEX)
        if self._login.user is not None:
            argv += ["-l", self._login.user]
        return [*argv, "--", self._node, self._login.shell_command()]

    def opening(self) -> bytes:
        """Return the boot."""
        return bundle.opening(self._login.keep)

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Say why ssh ended."""
        login, python = tuple(self.shell()), self._login.python
        trial = (*login, *self._login.trial_words())
        context = Context(self._node, login, python, self._login.sudo, trial)
        log = self._log.take()
        if log is not None and code != 0 and stderr.startswith(_NO_LOG):
            OwnWords.possible = False
            return Ending("unreachable", "ssh cannot write its log to memory", retry=True)
        if log is not None and _NEVER_THERE in log:
            log = stderr + log  # what stopped the jump host's ssh, which has no log of its own
        return explain_login(code, stderr, was_ready, context, log=log)

    def late(self, stderr: str) -> None:
        """Do nothing: the log is that of the present ssh."""

    def shell(self) -> list[str]:
        """Return a plain login as the same user: a person may be asked for a password or a yes."""
        return ["ssh", *(["-l", self._login.user] if self._login.user else []), self._node]
