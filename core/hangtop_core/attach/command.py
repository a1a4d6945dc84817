"""Starting the probe by a command of the user's own: containers, namespaces, other shells.

A template such as ``kubectl exec -i %h --`` is cut into words once, as a shell would, and then no
shell reads it any more: ``%h`` in a word becomes the node's name, ``%%`` a percent sign. How the
probe is started there is appended as words of its own, which is what programs that execute their
arguments want (docker, kubectl, nsenter, env, sudo). A program that hands them to a shell (lsh,
rsh, ssh, su -c) needs one word that is quoted for it; ``%c`` puts that word where it stands, and
nothing is appended.
"""

from __future__ import annotations

import re
import shlex
import shutil
from typing import TYPE_CHECKING

from hangtop_core.attach import bundle
from hangtop_core.attach.local import Wave
from hangtop_core.attach.reasons import COMMANDS, Context, explain_login
from hangtop_core.attach.ssh import HOLD_S
from hangtop_core.errors import UsageError
from hangtop_core.text import clean

if TYPE_CHECKING:
    from hangtop_core.attach.local import Ending
    from hangtop_core.attach.ssh import Login

_PLACE = re.compile(r"%(.?)", re.DOTALL)
EXAMPLE = "For example: --command 'kubectl exec -i %h --', or --command 'lsh %h %c'."


class Template:
    """A command with places for the node and for what is run there."""

    def __init__(self, text: str) -> None:
        """Take a template apart.

        Raises:
            UsageError: when it cannot be read, or its program is not on this machine.
        """
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--command: {clean(text, 80)!r}: {error}", EXAMPLE) from error
        if not self._words:
            raise UsageError("--command: nothing in it", EXAMPLE)
        places = [place for word in self._words for place in _PLACE.findall(word)]
        for place in places:
            if place not in ("h", "c", "%"):
                raise UsageError(f"--command: %{clean(place, 1)} stands for nothing", EXAMPLE)
        self.names_node = "h" in places
        self._has_boot = "c" in places
        if shutil.which(self._words[0]) is None:
            raise UsageError(f"--command: {clean(self._words[0], 80)!r} is not found here")

    def argv(self, node: str, login: Login) -> list[str]:
        """Return the command that starts the probe on ``node``."""
        words = self._fill(node, login.shell_command())
        return words if self._has_boot else words + login.exec_argv()

    def trial(self, node: str, python: str) -> str:
        """Return what a person can type to see whether Python starts there."""
        words = self._fill(node, f"{python} -V")
        return shlex.join(words if self._has_boot else [*words, python, "-V"])

    def _fill(self, node: str, boot: str) -> list[str]:
        values = {"h": node, "c": boot, "%": "%"}
        return [_PLACE.sub(lambda found: values[found[1]], word) for word in self._words]


class CommandLauncher:
    """The probe behind a command of the user's own."""

    channel = None

    def __init__(self, node: str, login: Login, template: Template) -> None:
        self._node = node
        self._login = login
        self._template = template

    @property
    def node(self) -> str:
        """The name that is put into the command."""
        return self._node

    @property
    def wave(self) -> Wave:
        """As many at once as for ssh: what the command can bear is not known."""
        return Wave("command", self._login.fanout, HOLD_S)

    def argv(self) -> list[str]:
        """Return the command."""
        return self._template.argv(self._node, self._login)

    def opening(self) -> bytes:
        """Return the boot."""
        return bundle.opening()

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Say why the command ended."""
        trial = self._template.trial(self._node, self._login.python)
        context = Context(self._node, trial, self._login.python, self._login.sudo, trial)
        return explain_login(code, stderr, was_ready, context, COMMANDS)
