"""Commands for people to paste: built from words, and quoted for a shell in one place.

Names from a node, a job or a file are words of a command, whatever characters they have. Shell
syntax is a `Sign`; the few signs are all here.
"""

from __future__ import annotations

import re
import shlex
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.text.clean import SAID, SAYS, clean, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_COMMAND = 5000
"""Maximum characters of a command: a longer one fits on no screen, and no path is longer."""


class Sign(Enum):
    """Text that a shell reads as more than a word."""

    PIPE = "|"
    THEN = ";"
    AND = "&&"
    OR = "||"
    INTO = ">"
    MERGED = "2>&1"
    KERNEL_LOG = "(dmesg -T || journalctl -k --since -1h)"
    """The first may be refused where the second is not; the second is empty without systemd."""
    HOST_NAME = "$(hostname)"
    FULL_HOST_NAME = '"$(hostname -f)"'
    MASTER_ADDR = "$MASTER_ADDR"
    MASTER_SOCKET = ":$MASTER_PORT"
    CONNECT = "'</dev/tcp/$MASTER_ADDR/$MASTER_PORT'"
    """For `bash -c`: connects to the address in the variables."""
    PORTS_DOWN = "/sys/class/infiniband/*/ports/*/counters/link_downed"


class Glob(Struct, frozen=True):
    """A word in which a shell fills in file names: its parts, with anything between them."""

    parts: tuple[str, ...]


_THEN = "\0"
_OWN = re.compile(
    "`(ulimit -c unlimited|hangtop(?: core| doctor| dump| nettest| numerics| diagnose --ras"
    "| run(?: -- COMMAND)?| flight(?: --trigger| --allow-inject)?)?)`"
)
"""Commands that hangtop's own sentences quote. They contain no text from outside."""
_FIX = re.compile(
    rf"(?!{SAID}|{SAYS})(?:.*: )?(sudo hangtop|hangtop --sudo|hangtop --via ssh"
    r"|pip install (?:--upgrade )?py-spy|apt-get install (?:strace|gdb))"
)
"""Commands at the end of hangtop's own fixes."""
Word = str | int | Sign | Glob


class HiddenWordError(ValueError):
    """A command cannot be shown as it would be pasted."""


class Command(Struct, frozen=True):
    """A command for a node's shell, or a hangtop command about a process on the node."""

    node: str
    """The node to run it on; empty where that is any node, or named in words."""
    words: tuple[Word, ...]
    why: str = ""
    """Text before the command."""

    def __post_init__(self) -> None:
        """Refuse a plain text in place of words: a shell would split it."""
        if not isinstance(self.words, tuple):
            raise TypeError("a command is made of words")


class Advice(str):
    """Words for a person, without anything to paste."""

    __slots__ = ()


Step = Advice | Command
"""One next step. A plain text is none."""


def spell(words: Iterable[Word]) -> str:
    """Return shell text for words, each of them quoted whole.

    Raises:
        HiddenWordError: the text would contain characters that no screen shows, or is too long.
    """
    text = " ".join(map(_spelt, words)).replace(f" {_THEN}", ";")
    if len(text) > MAX_COMMAND:
        raise HiddenWordError("it is too long to be shown")
    return text


class Spelt(NamedTuple):
    """A step as it is shown."""

    text: str
    command: str = ""
    """The command within the text; empty where there is none."""


def quoting(text: str) -> Spelt:
    """Return a text with the hangtop command that it quotes, if any."""
    quoted = _OWN.search(text) or _FIX.fullmatch(text)
    return Spelt(text, quoted[1] if quoted is not None else "")


def shown(step: Step) -> Spelt:
    """Return a step as it is shown.

    Raises:
        TypeError: the step is a plain text.
    """
    if isinstance(step, Advice):
        return quoting(clean(step, 600))
    if not isinstance(step, Command):
        raise TypeError(f"a next step is an Advice or a Command: {step!r}")
    why = clean(step.why)
    try:
        command = spell(step.words)
    except HiddenWordError as error:
        return Spelt(f"{why or 'no command can be shown'}: {error}")
    return Spelt(f"{why}: {command}" if why else command, command)


def texts(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return steps as texts."""
    return tuple(shown(step).text for step in steps)


def spelt_or_why(words: Iterable[Word]) -> str:
    """Return shell text for words, or the reason why there is none."""
    try:
        return spell(words)
    except HiddenWordError as error:
        return f"(no command: {error})"


@lru_cache(4096)
def _spelt(word: Word) -> str:
    if word is Sign.THEN:
        return _THEN  # no word has this character: see `is_shown`
    if isinstance(word, Sign):
        return str(word.value)
    parts = word.parts if isinstance(word, Glob) else (str(word),)
    if not all(is_shown(part) for part in parts):
        raise HiddenWordError("a name in it has characters that no screen shows")
    if isinstance(word, Glob):
        return "*".join(shlex.quote(part) if part else "" for part in parts)
    return shlex.quote(parts[0])


def is_shown(text: str) -> bool:
    """Return whether a screen shows every character of a text."""
    return is_plain(text) and "  " not in text


def operand(path: str) -> str:
    """Return a path that a program takes for a path even if it begins with a dash."""
    return f"./{path}" if path.startswith("-") else path


def stored(words: Iterable[str]) -> str:
    """Return words as a text that `words_of` reads: to be stored, not shown."""
    return shlex.join(words)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text that `stored` wrote, or `spell` without signs."""
    return tuple(shlex.split(text))
