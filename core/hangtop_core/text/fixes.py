"""The texts of fixes: a node chooses one by name, and writes none.

Any other text is shown as the node's words, and never as a command of hangtop.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hangtop_core.text.clean import AS_ROOT, SAID, clean, from_afar
from hangtop_probe.wire import fixes as names

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

TEXTS: Mapping[str, str] = {
    names.SUDO: AS_ROOT,
    names.AS_USER: "run hangtop as {}, or: sudo hangtop",
    names.CONTAINER: (
        "start the container with --cap-add=SYS_PTRACE (Kubernetes: "
        'securityContext.capabilities.add: ["SYS_PTRACE"])'
    ),
    names.OUTSIDE: "run hangtop outside of the container",
    names.YAMA: "sudo sysctl -w kernel.yama.ptrace_scope=0, or: sudo hangtop",
    names.YAMA_RESTART: "set kernel.yama.ptrace_scope=0 in /etc/sysctl.d and restart the node",
    names.PY_SPY: "pip install py-spy",
    names.PY_SPY_NEWER: "pip install --upgrade py-spy",
    names.STRACE: "apt-get install strace",
    names.GDB: "apt-get install gdb",
    names.NONBLOCKING: "use the non-blocking mode, the default",
    names.TRACED: "only one can trace it: wait for that, or end it",
    names.VIA_SSH: "hangtop --via ssh",
    names.DMESG: "sysctl kernel.dmesg_restrict=0 there, or: sudo hangtop",
    names.INSIDE: "run hangtop inside the container",
    names.RAS_ENABLE: "start the job without NCCL_RAS_ENABLE=0",
    names.RAS_ADDR: "give each job its own NCCL_RAS_ADDR",
    names.RAS_LOG: "NCCL_DEBUG=INFO tells where RAS listens, or why it does not",
    names.RAS_SAFE: "a later NCCL (2.29.2); or --ras=anyway, where the job is lost in any case",
}
"""Texts by name; `{}` stands for the argument."""
_ARGUMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}|uid [0-9]{1,10}")
"""User names, also of directory services (`DOMAIN\\name`, `name@domain`)."""
_WITHOUT_ARGUMENT = frozenset(
    form for words in TEXTS.values() if "{}" not in words for form in (words, from_afar(words))
)
_AS_USER = re.compile(
    "|".join(
        re.escape(form).replace(r"\{\}", f"(?:{_ARGUMENT.pattern})")
        for form in (TEXTS[names.AS_USER], from_afar(TEXTS[names.AS_USER]))
    )
)
_HOLDERS = ("failure", "trial", "py_spy", "ranks", "capabilities")
"""Fields of messages that may contain a fix."""


def text(fix_name: str | None) -> str | None:
    """Return the text of the fix that a probe names."""
    if not fix_name:
        return None
    name, _, argument = fix_name.partition(" ")
    words = TEXTS.get(name)
    if words is not None and ("{}" in words) == bool(_ARGUMENT.fullmatch(argument)):
        return words.format(argument)
    return SAID + clean(fix_name, 300).replace("`", "'")


def is_ours(words: str) -> bool:
    """Return whether a text is a fix from the table above, or its form for another node."""
    return words in _WITHOUT_ARGUMENT or bool(_AS_USER.fullmatch(words))


def denied(why: str, fix: str | None) -> str:
    """Return why a process cannot be read, followed by a semicolon and the fix."""
    words = text(fix)
    why = clean(why).replace("; ", ", ")
    return f"{why}; {words}" if words else why


def worded(value: T) -> T:
    """Return a decoded message with the text of every fix in it."""
    changed: Any = value
    if isinstance(value, dict):
        changed = {key: worded(part) for key, part in value.items()}
    elif isinstance(value, tuple):
        changed = tuple(worded(part) for part in value)
    elif isinstance(value, msgspec.Struct):
        changes: dict[str, Any] = {
            name: worded(held)
            for name in _holders(type(value))
            if isinstance(held := getattr(value, name), msgspec.Struct | dict | tuple)
        }
        fix_name = getattr(value, "fix", None)
        if fix_name is not None:
            changes["fix"] = text(fix_name)
        changed = msgspec.structs.replace(value, **changes) if changes else value
    result: T = changed
    return result


@cache
def _holders(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in _HOLDERS)
