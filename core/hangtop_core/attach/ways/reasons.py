"""Reasons of failed logins: from ssh's exit status and output to a state, a reason and a fix.

Texts are those of OpenSSH 9.2 (sshconnect.c, sshconnect2.c, ssh.c, packet.c, clientloop.c), sudo
1.9 and the shells bash, dash, zsh, tcsh and fish.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.attach.connect.launcher import Ending
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Command, Sign, Word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.model.snapshot import NodeState
    from hangtop_core.text.commands import Step

NOISE = re.compile(
    r"^(Warning: Permanently added|\*\* |debug\d:|Pseudo-terminal will not|X11 forwarding request"
    r"|.*warning: setlocale|.*cannot change locale|Connection to \S+ closed\.$|@@@"
    r"|command terminated with |Defaulted container |\s*$)"
)
"""Lines of standard error that are irrelevant to its end."""


class Context(NamedTuple):
    """Values for fixes."""

    node: str
    login: tuple[str, ...]
    """The ssh command that logs in to the node as hangtop does, for a person to try."""
    python: str
    sudo: bool
    trial: tuple[str, ...]
    """The command that shows whether Python starts there."""


class Slot(Struct, frozen=True):
    """Words of a `Fix` that are filled in: from `Context`, or a named group of a pattern."""

    name: str


class Fix(Struct, frozen=True):
    """A command that mends an ending, and the text before it, which may name `{node}`."""

    why: str
    words: tuple[Word | Slot, ...]


class KnownEnding(NamedTuple):
    """One known ending; ``reason`` may use groups of ``core_pattern``."""

    pattern: re.Pattern[str]
    state: NodeState
    reason: str
    fix: Advice | Fix | None = None
    retry: bool = False
    by_node: bool = False
    """Whether the node prints it, not ssh: it is searched in the node's output."""


def _row(
    pattern: str,
    state: NodeState,
    reason: str,
    fix: Advice | Fix | None = None,
    retry: bool = False,
    by_node: bool = False,
) -> KnownEnding:
    flags = re.MULTILINE | re.IGNORECASE
    return KnownEnding(re.compile(pattern, flags), state, reason, fix, retry, by_node)


NODE = Slot("node")
_LOGIN = Slot("login")
_ASK_KEY = (_LOGIN, "-o", "StrictHostKeyChecking=ask", "true")
_PYTHON_FIX = Advice("hangtop --python PATH, or --init 'COMMAND' that puts python3 on PATH")
_INIT_FIX = Advice(
    "try the --init there; for modules: --init '. /etc/profile && module load python'"
)
_CHANGED = "its host key has changed: it was installed anew, or somebody sits in between"

SUDO = (
    _row(
        r"sudo: (a password is required|a terminal is required|no tty present)",
        "denied",
        "sudo asks for a password there, and hangtop gives none",
        Advice("allow it without one (NOPASSWD in sudoers), or leave out --sudo"),
        by_node=True,
    ),
    _row(
        r"(is not in the sudoers file|is not allowed to (?:execute|run))",
        "denied",
        r"sudo refuses: the user \1",
        Advice("leave out --sudo, or ask for the right"),
        by_node=True,
    ),
    _row(
        r"sudo: (?:command )?not found|sudo: Unknown command",
        "denied",
        "there is no sudo on it",
        Advice("leave out --sudo, or log in as root: -l root"),
        by_node=True,
    ),
)

# Tried in this order: what OpenSSH prints last is often only a consequence.
TABLE = (
    _row(
        r"^Offending \S+ key in (?P<file>\S.*):\d+\s*\n"
        r"(?:.*\n){0,8}?Host key for (?P<host>\S+) has changed",
        "denied",
        _CHANGED,
        Fix(
            "ask whoever runs {node} for its new key, then",
            ("ssh-keygen", "-f", Slot("file"), "-R", Slot("host"), Sign.AND, *_ASK_KEY),
        ),
    ),
    _row(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "denied",
        _CHANGED,
        Fix(
            "ask whoever runs {node} for its new key, then",
            ("ssh-keygen", "-R", NODE, Sign.AND, _LOGIN, "true"),
        ),
    ),
    _row(
        r"No (\S+) host key is known for",
        "denied",
        r"its \1 host key is not known here, and is never accepted silently",
        Fix("compare and accept it", _ASK_KEY),
    ),
    _row(
        r"REVOKED HOST KEY",
        "denied",
        "its host key is marked as revoked here",
        Advice("ask whoever runs {node}"),
    ),
    # ssh's message about an unknown key when it may not ask.
    _row(
        r"Host key verification failed",
        "denied",
        "its host key is not known here, and is never accepted silently",
        Fix("compare and accept it", _ASK_KEY),
    ),
    _row(
        r"pam_slurm|no active jobs on this node",
        "denied",
        "Slurm lets only users log in who have a job running there",
        Advice("log in while the job runs"),
        by_node=True,
    ),
    _row(
        r"Permission denied \(([^)\n]{0,200})\)",
        "denied",
        r"login refused (\1): no key or ticket of yours is accepted",
        Fix("make this work without a password (ssh-add -l, klist, or -l USER)", (_LOGIN, "true")),
    ),
    _row(
        r"Too many authentication failures",
        "denied",
        "login refused: too many keys were offered",
        Advice("name the key in ~/.ssh/config: IdentityFile and IdentitiesOnly yes"),
    ),
    *SUDO,
    _row(
        r"account is currently not available|nologin",
        "denied",
        "this user has no shell there",
        Advice("log in as another user: -l USER"),
        by_node=True,
    ),
    _row(
        r"Bad SSH2 KexAlgorithms",
        "denied",
        "the ssh of this machine is too old for --fast-kex",
        Advice("leave out --fast-kex: it needs OpenSSH 8"),
        by_node=True,  # ssh says it before it has a log
    ),
    _row(
        r"(Bad (?:owner or permissions on|configuration option:) .*|terminating, \d+ bad config.*)",
        "denied",
        r"ssh does not accept its configuration: \1",
        Fix("see", (_LOGIN, "true")),
    ),
    _row(
        r"(Could not resolve hostname .*)",
        "unreachable",
        "its name cannot be resolved",
        Fix("check the name", ("getent", "hosts", NODE)),
        retry=True,
    ),
    _row(
        r"Connection refused",
        "unreachable",
        "nobody answers on its ssh port (connection refused)",
        Advice("check that sshd runs on {node}"),
        retry=True,
    ),
    _row(
        r"timed out during banner exchange",
        "unreachable",
        "it takes connections but does not answer: overloaded, frozen or out of memory",
        Advice("look at its console; --connect-timeout waits longer"),
        retry=True,
    ),
    _row(
        r"(No route to host|Network is unreachable|(?:Connection|Operation) timed out)",
        "unreachable",
        r"no connection: \1",
        Fix("check power, network and firewall", ("ping", NODE)),
        retry=True,
    ),
    _row(
        r"Timeout, server \S+ not responding",
        "unreachable",
        "it stopped answering in the middle of the connection",
        None,
        retry=True,
    ),
    # ssh prints this only once a session exists.
    _row(
        r"Connection to \S+ closed by remote host",
        "unreachable",
        "its sshd ended the connection, or was killed",
        None,
        retry=True,
        by_node=True,  # ssh says it where the node's words go
    ),
    _row(
        r"Connection (?:closed by|reset by|to \S+ closed by) (UNKNOWN port 65535|\S+)",
        "unreachable",
        r"the connection was closed (by \1) before the login was done",
        Advice("too many logins at once, or a jump host that refuses: --fanout 4"),
        retry=True,
    ),
    _row(
        r"(client_loop: send disconnect|Broken pipe|kex_exchange_identification)",
        "unreachable",
        "the connection broke",
        None,
        retry=True,
    ),
)

# Messages of programs that run commands inside a container (runc, containerd, CRI-O), and shells.
COMMANDS = (
    *SUDO,
    _row(
        r"""exec:? \\?"([^"\\]{1,400})\\?":? """
        r"(?:executable file not found|stat .{0,400}no such file)",
        "no-python",
        r"there is no \1 in it",
        _PYTHON_FIX,
    ),
    _row(
        r"syntax error|unexpected token|[Bb]adly placed|parse error|expected a command",
        "incompatible",
        "the command gives its words to a shell, which cuts them up again",
        Advice("put %c at its end, which is quoted for a shell: --command 'lsh %h %c'"),
    ),
    _row(
        r"exec \[POD\] \[COMMAND\] is not supported",
        "incompatible",
        "kubectl wants -- between the pod and what it runs there",
        Advice("put -- at its end: --command 'kubectl exec -i %h --'"),
    ),
)

# pdsh tries rsh unless another remote shell is set.
PDSH = (
    _row(
        r"rcmd: |rresvport|poll: protocol failure",
        "denied",
        "pdsh tries to reach it by rsh",
        Advice("export PDSH_RCMD_TYPE=ssh (pdsh -V lists what it can do)"),
    ),
    # With rsh it then starts nothing at all, so this node must stay out of the next run.
    _row(
        r"gethostbyname\(.*\) failed",
        "unreachable",
        "its name cannot be resolved",
        Fix("export PDSH_RCMD_TYPE=ssh, or check the name", ("getent", "hosts", NODE)),
    ),
    *TABLE,
)


def explain_login(
    code: int | None,
    stderr: str,
    was_ready: bool,
    context: Context,
    table: Sequence[KnownEnding] = TABLE,
    log: str | None = None,
) -> Ending:
    """Return the meaning of the end of an ssh. After a probe's hello, the node is `lost`.

    Args:
        code: exit status of ssh.
        stderr: its standard error: banners, and output of programs on the node.
        was_ready: whether a probe had said hello.
        context: values for fixes.
        table: the known endings.
        log: ssh's own messages; None where they are in ``stderr``, too.
    """
    own = stderr if log is None else log
    ending = None if code == 0 else _first(table, own, stderr)
    if ending is not None and not (was_ready and code != 255):
        source = stderr if ending.by_node else own
        values = {"node": (context.node,), "login": context.login}
        return known_ending(ending, source, was_ready, values)
    by_ssh = _relevant_lines(log) if log is not None and code == 255 else []
    lines = by_ssh or _relevant_lines(stderr)
    no_python = None if was_ready else _without_python(code, lines, context.python)
    if no_python is not None:
        return no_python
    return _disconnected(code, _last(lines), was_ready, context)


def _disconnected(code: int | None, last: str, was_ready: bool, context: Context) -> Ending:
    how = "did not end" if code is None else f"ended with status {code}"
    reason = f"the connection {how}" + (f": {last}" if last else "")
    if was_ready:
        return Ending("lost", reason, True)
    return Ending("unreachable", reason, True, Command("", context.trial, "see what happens"))


def _without_python(code: int | None, lines: Sequence[str], python: str) -> Ending | None:
    """Return why no usable Python started; None where that is not the reason."""
    text, last = "\n".join(lines), _last(lines)
    if code in (126, 127):
        missing = re.search(r"not found|unknown command|no such file|does not exist", text, re.I)
        if missing and os.path.basename(python) not in text:
            line = next((line for line in lines if missing[0] in line), "")
            reason = f"its shell did not get as far as {python}: {clean(line, 200)}"
            return Ending("no-python", reason, False, _INIT_FIX)
        broken = not missing and last
        reason = f"{python} does not start: {last}" if broken else f"there is no {python} on it"
        return Ending("no-python", reason, False, _PYTHON_FIX)
    if re.search(r"unknown option -I|invalid literal for int", text, re.I):
        return Ending("no-python", f"{python} is no usable Python: {last}", False, _PYTHON_FIX)
    return None


def _last(lines: Sequence[str]) -> str:
    return clean(lines[-1], 200) if lines else ""


def _first(table: Sequence[KnownEnding], own: str, stderr: str) -> KnownEnding | None:
    """Return the first match: refusals by ssh first, then output of the node, then the others."""
    if own == stderr:
        return next((entry for entry in table if entry.pattern.search(stderr)), None)
    matches = [entry for entry in table if entry.pattern.search(stderr if entry.by_node else own)]
    matches.sort(key=lambda entry: 1 if entry.by_node else 0 if entry.state == "denied" else 2)
    return matches[0] if matches else None


def _relevant_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not NOISE.match(line)]


def known_ending(
    entry: KnownEnding, stderr: str, was_ready: bool, values: Mapping[str, Sequence[str]]
) -> Ending:
    """Return an ending with the reason filled in from ``stderr`` and the fix from ``values``."""
    match = entry.pattern.search(stderr)
    reason = clean(match.expand(entry.reason), 300) if match else entry.reason
    named = match.groupdict() if match else {}
    groups = {name: (text or "",) for name, text in named.items()}
    fix = None if entry.fix is None else filled(entry.fix, {**values, **groups})
    state = "lost" if was_ready and entry.retry else entry.state
    return Ending(state, reason, entry.retry, fix)


def filled(fix: Advice | Fix, values: Mapping[str, Sequence[str]]) -> Step:
    """Return a fix with its places filled in."""
    names = {name: words[0] for name, words in values.items()}
    if isinstance(fix, Advice):
        return Advice(fix.format_map(names))
    words: list[Word] = []
    for word in fix.words:
        words += values[word.name] if isinstance(word, Slot) else [word]
    return Command("", tuple(words), fix.why.format_map(names))
