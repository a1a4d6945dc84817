"""Commands for people to paste: built from words, and spelt for a shell in one place.

What a node, a job or a file calls itself is a word of a command, whatever characters it has. What a
shell is to understand is a `Sign`, of which there are a few, all here.
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
"""Characters of a command: a longer one fits on no screen, and no path is longer."""


class Sign(Enum):
    """What a shell reads as more than a word."""

    PIPE = "|"
    THEN = ";"
    AND = "&&"
    OR = "||"
    INTO = ">"
    MERGED = "2>&1"
    KERNEL_LOG = "(dmesg -T || journalctl -k --since -1h)"
    """The first may be refused where the second is not, which is empty on nodes without systemd."""
    HOST_NAME = "$(hostname)"
    FULL_HOST_NAME = '"$(hostname -f)"'
    MASTER_ADDR = "$MASTER_ADDR"
    MASTER_SOCKET = ":$MASTER_PORT"
    CONNECT = "'</dev/tcp/$MASTER_ADDR/$MASTER_PORT'"
    """For `bash -c`: it connects to what the variables say."""
    PORTS_DOWN = "/sys/class/infiniband/*/ports/*/counters/link_downed"


class Glob(Struct, frozen=True):
    """A word in which a shell fills in files: its parts, with anything between them."""

    parts: tuple[str, ...]


_THEN = "\0"
_OWN = re.compile(
    "`(ulimit -c unlimited|hangtop(?: core| doctor| dump| nettest| numerics| diagnose --ras"
    "| run(?: -- COMMAND)?| flight(?: --trigger| --allow-inject)?)?)`"
)
"""Commands that sentences of ours quote. They have nothing in them that anybody else has chosen."""
_FIX = re.compile(
    rf"(?!{SAID}|{SAYS})(?:.*: )?(sudo hangtop|hangtop --sudo|hangtop --via ssh"
    r"|pip install (?:--upgrade )?py-spy|apt-get install (?:strace|gdb))"
)
"""Those that fixes of ours end with."""
Word = str | int | Sign | Glob


class HiddenWordError(ValueError):
    """A command cannot be shown as it would be pasted."""


class Command(Struct, frozen=True):
    """A command of a node's shell, or one of hangtop's own that is about a process there."""

    node: str
    """Where it is to be run; empty where that is anywhere, or said in words."""
    words: tuple[Word, ...]
    why: str = ""
    """What is said before it."""

    def __post_init__(self) -> None:
        """Refuse a text in place of words: a shell would take it apart."""
        if not isinstance(self.words, tuple):
            raise TypeError("a command is made of words")


class Advice(str):
    """Words for a person, in which nothing is meant to be pasted."""

    __slots__ = ()


Step = Advice | Command
"""One thing to do next. A plain text is none."""


def spell(words: Iterable[Word]) -> str:
    """Write words as the text that makes a shell run them, each of them whole.

    Raises:
        HiddenWordError: the text would hold what no screen shows as it is, or is too long.
    """
    text = " ".join(map(_spelt, words)).replace(f" {_THEN}", ";")
    if len(text) > MAX_COMMAND:
        raise HiddenWordError("it is too long to be shown")
    return text


class Spelt(NamedTuple):
    """A step as it is shown."""

    text: str
    command: str = ""
    """The command in it, as it stands there; empty where there is none."""


def quoting(text: str) -> Spelt:
    """Return a text with the command of ours that it quotes, if it does."""
    quoted = _OWN.search(text) or _FIX.fullmatch(text)
    return Spelt(text, quoted[1] if quoted is not None else "")


def shown(step: Step) -> Spelt:
    """Write a step for a person.

    Raises:
        TypeError: it is a plain text.
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
    """Write words for a shell, or why that cannot be done."""
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
    """Whether every character of a text is on the screen where the text is."""
    return is_plain(text) and "  " not in text


def operand(path: str) -> str:
    """Return a path as a program takes it for one, whatever it begins with."""
    return f"./{path}" if path.startswith("-") else path


def stored(words: Iterable[str]) -> str:
    """Write words as a text that `words_of` reads: to be kept, not to be shown."""
    return shlex.join(words)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text that `stored` has written, or `spell` without signs."""
    return tuple(shlex.split(text))
