"""Starting the probe by a command of the user's own: containers, namespaces, other shells.

A template such as ``kubectl exec -i %h --`` is split into words once, as a shell would, and no
shell reads it after that: ``%h`` in a word becomes the node's name, ``%%`` a percent sign. The
start of the probe is appended as further words, as expected by programs that execute their
arguments (docker, kubectl, nsenter, env, sudo). A program that passes them to a shell (lsh, rsh,
ssh, su -c) needs one word that is quoted for it: ``%c`` at the end of the template.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.launcher import ByHand, Wave
from hangtop_core.attach.ways.reasons import COMMANDS, Context, explain_login
from hangtop_core.attach.ways.ssh import HOLD_S
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.attach.connect.launcher import Ending
    from hangtop_core.attach.ways.reasons import KnownEnding
    from hangtop_core.attach.ways.ssh import Login

_PLACE = re.compile(r"%(.?)", re.DOTALL)
_TERMINAL = frozenset({"-t", "-it", "-ti", "--tty"})
"""Options of docker, podman and kubectl for a terminal, which would change the data."""
EXAMPLE = "For example: --command 'kubectl exec -i %h --', or --command 'lsh %h %c'."


_NO_TERMINAL = Advice("leave out -t, which asks for a terminal: exec -i")


class Template:
    """A command with places for the node and for the command that runs there."""

    def __init__(self, text: str) -> None:
        """Parse a template.

        Raises:
            UsageError: it cannot be parsed, or its program is not on this machine.
        """
        try:
            self._words = list(words_of(text))
        except ValueError as error:
            raise UsageError(f"--command: {clean(text, 80)!r}: {error}", EXAMPLE) from error
        if not self._words:
            raise UsageError("--command: nothing in it", EXAMPLE)
        self._text = text
        self._for_shell = self._words[-1] == "%c"
        if self._for_shell:
            self._words.pop()
        places = [place for word in self._words for place in _PLACE.findall(word)]
        for place in places:
            if place == "c":
                raise UsageError("--command: %c is no word of its own at the end", EXAMPLE)
            if place not in ("h", "%"):
                raise UsageError(f"--command: %{clean(place, 1)} stands for nothing", EXAMPLE)
        self.names_node = "h" in places
        self.asks_terminal = "exec" in self._words and not _TERMINAL.isdisjoint(self._words)
        if not self._words or shutil.which(self._words[0]) is None:
            program = clean(self._words[0] if self._words else text, 80)
            raise UsageError(f"--command: {program!r} is not found here", EXAMPLE)

    def argv(self, node: str, login: Login) -> list[str]:
        """Return the command that starts the probe on ``node``."""
        boot = [login.shell_command()] if self._for_shell else login.exec_argv()
        return self._fill(node) + boot

    def by_hand(self, node: str, login: Login) -> ByHand:
        """Return how a person reaches the node by the same command."""
        shell = self._fill(node) + ([] if self._for_shell else ["sh", "-c"])
        options = [*login.options(node), "--command", self._text]
        return ByHand(tuple(shell), tuple(options))

    def terminal(self, node: str) -> list[str]:
        """Return the command that gives a person a shell there."""
        return self._fill(node) + ([] if self._for_shell else ["sh", "-i"])

    def trial(self, node: str, login: Login) -> tuple[str, ...]:
        """Return the command with which a person can try whether Python starts there."""
        boot = [login.trial_command()] if self._for_shell else login.trial_argv()
        return (*self._fill(node), *boot)

    def _fill(self, node: str) -> list[str]:
        values = {"h": node, "%": "%"}
        return [_PLACE.sub(lambda match: values[match[1]], word) for word in self._words]


class CommandLauncher:
    """The probe behind a command of the user's own."""

    channel = None
    via = "command"
    patience = 0.0
    endings: Sequence[KnownEnding] = COMMANDS

    def __init__(self, node: str, login: Login, template: Template) -> None:
        self._node = node
        self._login = login
        self._template = template

    @property
    def node(self) -> str:
        """Return the name that is put into the command."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """Return the same command for a person."""
        return self._template.by_hand(self._node, self._login)

    @property
    def wave(self) -> Wave:
        """Return the limit of ssh: that of the command is unknown."""
        return Wave("command", self._login.fanout, HOLD_S)

    def argv(self) -> list[str]:
        """Return the command."""
        return self._template.argv(self._node, self._login)

    def opening(self) -> bytes:
        """Return the boot."""
        return bundle.opening(self._login.keep)

    def late(self, stderr: str) -> None:
        """Do nothing: an earlier command does not explain the present one."""

    def shell(self) -> list[str]:
        """Return the same command with a shell; it has a terminal if the command gives one."""
        return self._template.terminal(self._node)

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return why the command ended."""
        trial = self._template.trial(self._node, self._login)
        context = Context(self._node, trial, self._login.python, self._login.sudo, trial)
        ending = explain_login(code, stderr, was_ready, context, self.endings)
        if self._template.asks_terminal and ending.state == "unreachable":
            return ending._replace(fix=_NO_TERMINAL)
        return ending
