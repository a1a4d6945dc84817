"""Starting the probe on a node by the system's ssh, with the user's own configuration.

ssh handles the user's config, agent, jump hosts, masters and Kerberos tickets. The options set here
keep a screen from hanging on a prompt, and a node from reaching back: no prompts, no agent or X11
forwarding, no port forwards, and dead connections end. Host keys are checked by the user's
configuration; hangtop never accepts one.
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
"""Default of simultaneous logins; `--fanout` sets another number."""
AT_ONCE_BEHIND_A_JUMP = 8
"""sshd refuses logins at random beyond ten at a time (MaxStartups 10:30:100)."""
HOLD_S = 3.0
"""Seconds after which a login does not delay others any more, except behind a jump host."""
FAST_KEX = "-oKexAlgorithms=^curve25519-sha256"
"""Puts X25519 before the post-quantum method; the node's offer still decides. Needs OpenSSH 8."""

_MAX_LOG = 65536
LEFT_S = 10.0
"""Seconds for which the log of an abandoned ssh stays open; it is killed before (`Timing`)."""
_MAX_SETTINGS = 1 << 20
"""Maximum bytes of `ssh -G`, which prints some KB."""
_ASK_S = 5.0
_NEVER_THERE = "UNKNOWN port 65535"
"""Part of ssh's message when its proxy ended: then the node itself has sent nothing."""
_NO_LOG = "Couldn't open logfile"
"""Message of OpenSSH's log.c, log_redirect_stderr_to."""
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
    """Limit in seconds."""
    fanout: int = AT_ONCE
    """Maximum number of simultaneous logins."""
    fast_kex: bool = False
    """Agree on keys by X25519 alone, which saves some 60 ms of CPU time per login; but a quantum
    computer may read recorded traffic one day."""
    keep: bool = True
    """Whether files may stay on nodes; without it py-spy is not sent."""

    def check(self) -> Login:
        """Return this login after checking its texts.

        Raises:
            UsageError: a text is invalid.
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
        """Return the options of hangtop that reach a node so, without defaults.

        They are for commands to copy, so they are short. An option that overrides the config file
        on the command line has to be given again.
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
        """Return the command that starts the boot, for a program that executes its arguments."""
        if self.init:
            return ["sh", "-c", self.shell_command()]
        sudo = ["sudo", "-n"] if self.sudo else []
        return [*sudo, self.python, "-I", "-S", "-u", "-c", BOOT]

    def trial_argv(self) -> list[str]:
        """Return the command that shows whether Python starts, for a program that executes it."""
        if self.init:
            return ["sh", "-c", self.trial_command()]
        return self.trial_command().split()

    def trial_command(self) -> str:
        """Return the command that shows whether Python starts, for a shell."""
        trial = f"{'sudo -n ' if self.sudo else ''}{self.python} -V"
        return f"{self.init} && {trial}" if self.init else trial

    def trial_words(self) -> list[str]:
        """Return its words for the end of a command line that another shell reads."""
        return [self.trial_command()] if self.init else self.trial_command().split()

    def shell_command(self, pushed: str | None = None) -> str:
        """Return the command that starts the boot, for any shell (`hangtop_probe.wire.boot.BOOT`).

        Args:
            pushed: the result of `bundle.pushed`, where nothing can be sent over stdin.
        """
        sudo = "sudo -n " if self.sudo else ""
        code, word = (BOOT, "") if pushed is None else (bundle.PUSHED, f" {pushed}")
        boot = f'exec {sudo}{self.python} -I -S -u -c "{code}"{word}'
        return f"{self.init} && {boot}" if self.init else boot


class Jumps:
    """The nodes behind a jump host, by the user's ssh configuration.

    ssh is asked once for names that differ in digits only, not a thousand times for a thousand
    nodes.
    """

    def __init__(self, user: str | None) -> None:
        self._user = user
        self._cache: dict[str, str | None] = {}

    def of(self, node: str) -> str | None:
        """Return the jump host or proxy command of a node, or None."""
        kind = re.sub(r"\d+", "0", node)
        if kind not in self._cache:
            self._cache[kind] = jump_of(settings(node, self._user))
        return self._cache[kind]


def jump_of(values: Mapping[str, str]) -> str | None:
    """Return the jump host or proxy command in `settings`, or None."""
    jumps = (values.get(name, "none") for name in ("proxyjump", "proxycommand"))
    return next((value for value in jumps if value != "none"), None)


def settings(node: str, user: str | None) -> dict[str, str]:
    """Return ssh's settings for a node, by its own account; empty where it fails."""
    login = ["-l", user] if user is not None else []
    argv = ["ssh", "-G", *login, "--", node]
    try:
        done = subprocesses.run(argv, _ASK_S, _MAX_SETTINGS, os.environ)
    except (OSError, subprocess.TimeoutExpired, subprocesses.TooMuchOutputError):
        return {}
    lines = (line.partition(" ") for line in done.out.split("\n"))
    return {key: value for key, _, value in lines if value}


def port_of(values: Mapping[str, str]) -> int:
    """Return the port in `settings`; 22 where it is missing or impossible."""
    port = values.get("port", "")
    return int(port) if re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 65536 else 22


class OwnWords:
    """ssh's own messages, separate from the node's output before and after the login.

    Otherwise a banner that says "Permission denied" would be believed. ssh writes them to a file in
    memory, which it opens by its name in /proc. The file of an abandoned ssh stays open for a
    while: the ssh may have yet to open it, and the next file would have the same name.
    """

    possible = hasattr(os, "memfd_create")
    """Whether such files exist, and ssh could open them so far."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._left: list[tuple[float, int]] = []
        """When (monotonic) an ssh was abandoned, and its file."""

    def __del__(self) -> None:
        self._close()
        for _, fd in self._left:
            os.close(fd)

    def begin(self) -> list[str]:
        """Return the options for the next ssh; empty where no such file is possible."""
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
        """Return the messages of the last ssh, once; None where unknown."""
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
        """Return the user's time limit for logins, which includes the probe's start."""
        return self._login.connect_timeout

    @property
    def node(self) -> str:
        """Return the name by which it is reached."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """Return the same ssh for a person, with the options that differ from defaults."""
        return ByHand(tuple(self.shell()), tuple(self._login.options(self._node)))

    @property
    def wave(self) -> Wave:
        """Return the login limit: low behind a jump host, whose sshd counts all of them."""
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
        """Return why ssh ended."""
        login, python = tuple(self.shell()), self._login.python
        trial = (*login, *self._login.trial_words())
        context = Context(self._node, login, python, self._login.sudo, trial)
        log = self._log.take()
        if log is not None and code != 0 and stderr.startswith(_NO_LOG):
            OwnWords.possible = False
            return Ending("unreachable", "ssh cannot write its log to memory", retry=True)
        if log is not None and _NEVER_THERE in log:
            log = stderr + log  # the error of the jump host's ssh, which has no log of its own
        return explain_login(code, stderr, was_ready, context, log=log)

    def late(self, stderr: str) -> None:
        """Do nothing: the log is that of the present ssh."""

    def shell(self) -> list[str]:
        """Return a plain login as the same user: a person may be asked for a password or a yes."""
        return ["ssh", *(["-l", self._login.user] if self._login.user else []), self._node]
