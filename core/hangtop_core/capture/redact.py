"""Remove secrets from a capture, and paths and hosts on request.

Nodes mask command lines, variables and logs before they send them (`hangtop_probe.secrets.mask`).
The same rules are applied here to every text: stacks, locals, kernel lines, GPUs, commands,
conclusions. Replacement names are the same throughout the file, so conclusions remain readable.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hangtop_core.capture import fields, form
from hangtop_core.text import node_sets
from hangtop_core.text.addresses import is_loopback
from hangtop_probe.proc.procfs import words
from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_text, mask_value
from hangtop_probe.secrets.secretnames import PLAIN_REPR, is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.snapshot import Snapshot

SECRETS, PATHS, HOSTS = "secrets", "paths", "hosts"
MAX_TEXT = 4096
"""The limit of `hangtop_core.text.clean.Text`: a text must not grow beyond it."""

MAX_DONE = 200_000
"""Maximum number of distinct texts in the cache: a followed log has no end."""

_TEXTS = frozenset({str, list, tuple, dict})
_ARGUMENTS = frozenset({"cmdline"})
_NAMED = frozenset({"env"})

_PATH = re.compile(
    r"(?<![\w/.~:-])(?:~|\.{1,2})?(?:/[\w.@%+,=#-]+)+/?|(?<![\w.@%+-])[\w.@%+-]+(?:/[\w.@%+-]+)+"
)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^/(?:proc|sys|dev)(?:/|$)")
_INSIDE = re.compile(r"(?:site|dist)-packages|python\d[\d.]*|folder-\d+|hang-\d{8}T\d{6}Z(?:-\d+)?")
"""Folders of libraries, those of `hangtop watch`, and replacement names."""
_COMMON = frozenset(
    words("""
    . .. .cache .config .local bin boot cache captures data dev dist-packages etc hangtop home
    lib lib32 lib64 libexec local log logs mnt net nfs null opt proc pts python root run sbin
    scratch share shm site-packages src srv state strace sys tmp torchrun traces usr var work ~
    """)
)
"""Common folders, which show the kind of place but identify no user."""
_PROGRAMS = frozenset({"bin", "sbin", "libexec"})
"""Folders whose files keep their names."""
_KEPT_NAME = re.compile(
    r"(?:[\w+-]+\.)+(?:py|so|pyc|pyx|pyi|cuh?|[chi]pp|cxx|cc|hh|[chsS]|rs|sh|out|err|log|txt|jsonl?)[\d.]*"
)
_WORD = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?")
_BETWEEN = re.compile(r"([-_.])")
MAX_PARTS = 41
"""Maximum number of parts of a word, with separators, that are searched for names of hosts: all
runs of parts are tried."""
_FILE = re.compile(r"[\w-]+\.(?:py|so|log|out|err|txt|json|pt|bin)")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,8}(?:[0-9a-fA-F]{1,4}|\d{5}|(?<=::))(?!\w|:[\w:]|\.\d)"
)
"""Both may stand before the full stop or the colon of a sentence; the second may have a port."""
_FOLDED = re.compile(r"(?<![\w.-])(?=\w)(?:[\w.-]*\[[0-9,-]{1,2000}\])+(?:[\w.-]*\w)?")
_NUMBERS = re.compile(r"(?:\d|\[[0-9,-]*\])+")


class Redaction(Struct, frozen=True):
    """Kinds of text to remove."""

    secrets: bool = True
    paths: bool = False
    hosts: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The enabled kinds, for the header."""
        wanted = ((SECRETS, self.secrets), (PATHS, self.paths), (HOSTS, self.hosts))
        return tuple(name for name, on in wanted if on)


class Redactor:
    """Mask texts and count the masked places by kind. Every distinct text is masked once."""

    def __init__(self, redaction: Redaction) -> None:
        self.redaction = redaction
        self._counts: Counter[str] = Counter()
        self._done: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._nodes: set[str] = set()
        """Replacement names of hosts."""
        self._shapes: set[str] = set()
        """Names of hosts without their numbers: `r#n#`."""
        self._numbers: set[str] = set()
        """Names of hosts that are numbers, which occur everywhere: they stay."""
        self._addresses: dict[str, str] = {}
        self._made_up: set[str] = set()
        """Replacement addresses."""

    def anew(self) -> Redactor:
        """Return a redactor with the same replacements and no counts: for another file."""
        copy = Redactor(self.redaction)
        copy._folders = self._folders.copy()
        copy._hosts, copy._shapes = self._hosts.copy(), self._shapes.copy()
        copy._nodes, copy._numbers = self._nodes.copy(), self._numbers.copy()
        copy._addresses, copy._made_up = self._addresses.copy(), self._made_up.copy()
        return copy

    @property
    def counts(self) -> dict[str, int]:
        """Number of masked places by kind, and of replaced names."""
        counts = dict(self._counts)
        if self._folders:
            counts[form.FOLDERS] = len(self._folders)
        if self.redaction.hosts:
            counts[form.HOSTS] = len(self._nodes)
            counts[form.ADDRESSES] = len(self._addresses)
            if self._numbers:
                counts[form.KEPT] = len(self._numbers)
        return counts

    def learn(self, snapshots: Sequence[Snapshot]) -> None:
        """Learn the names of hosts and folders before anything is written."""
        if self.redaction.hosts:
            self._learn_hosts(snapshots)
        if self.redaction.paths:
            for snapshot in snapshots[-1:]:
                for text in _with_paths(snapshot):
                    self._names(text)
        self._done.clear()

    def _learn_hosts(self, snapshots: Sequence[Snapshot]) -> None:
        for node in {id(node): node for snap in snapshots for node in snap.nodes}.values():
            self._learn_host(node.name, node.hostname)
        # Hosts of unseen ranks, by the scheduler's word.
        for host in (host for snap in snapshots for job in snap.jobs for host in job.hosts):
            if host.partition(".")[0] not in self._hosts:
                self._learn_host(host, None)

    def learn_hosts(self, names: Iterable[str]) -> None:
        """Learn names of hosts, each of a different one."""
        if self.redaction.hosts:
            for name in names:
                self._learn_host(name, None)

    def learn_paths(self, raw: Any) -> None:
        """Learn the names of folders in plain data, so that parts of paths are known, too."""
        if self.redaction.paths:
            counts = self._counts.copy()
            self.data(raw)
            self._counts = counts
            self._done.clear()

    def _learn_host(self, name: str, hostname: str | None) -> None:
        stand_in = self._hosts.get(name) or f"node-{len(self._nodes) + 1}"
        for host in (name, hostname):
            if host and not _is_address(host) and not is_loopback(host):
                first = host.partition(".")[0]
                if host != first or not host.isdecimal():
                    self._nodes.add(self._hosts.setdefault(host, stand_in))
                if first.isdecimal():
                    self._numbers.add(first)
                    continue
                self._nodes.add(self._hosts.setdefault(first, stand_in))
                self._shapes.add(_NUMBERS.sub("#", first))

    def data(self, raw: Any) -> Any:
        """Return plain data with all texts in it masked, including keys of objects."""
        if isinstance(raw, str):
            return self.text(raw)
        if isinstance(raw, list | tuple):
            return self._several(raw)
        if isinstance(raw, dict):
            return self._object(raw)
        return raw

    def _several(self, raw: Any) -> list[Any]:
        if raw and all(isinstance(item, str) for item in raw):
            whole = "\n".join(raw)
            if "PRIVATE KEY" in whole:
                # A key in lines of its own is recognised by its first and last line.
                masked = self.text(whole).split("\n")
                if len(masked) == len(raw):
                    return [self.text(item) for item in masked]
        return [self.data(item) for item in raw]

    def _object(self, raw: dict[Any, Any]) -> dict[Any, Any]:
        masked = {}
        for key, value in raw.items():
            if type(value) in _TEXTS:
                key, value = self._item(key, value)
            masked[key] = value
        if "value" in masked and "name" in masked and self.redaction.secrets:
            masked["value"] = self._local(str(masked["name"]), str(masked["value"]))
        if self.redaction.paths and isinstance(masked.get("file"), str) and "short" in masked:
            masked["short"] = _short(masked["file"], str(masked["short"]))
        return masked

    def _item(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Return a key and its value, a text or a container of texts, as they are written."""
        if self.redaction.secrets:
            value = self._without_secrets(key, value)
        if not (self.redaction.paths or self.redaction.hosts):
            return key, self.data(value)
        name = self._names(key) if isinstance(key, str) else key
        # Also if a node's name is `master`, or `gpu`.
        if name != key and fields.is_key(key):
            name = key
        masked = self.data(value)
        own = masked != value and isinstance(value, str)
        return name, value if own and fields.is_word(key, value) else masked

    def _without_secrets(self, key: Any, value: Any) -> Any:
        if key in _ARGUMENTS and isinstance(value, list):
            return list(mask_arguments(map(str, value), self._note))
        if key in _NAMED and isinstance(value, dict):
            return {name: self._variable(name, text) for name, text in value.items()}
        return value

    def _variable(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value != MASK and _is_secret_name(name):
            if PLAIN_REPR.fullmatch(value):
                return value
            self._note("variable")
            return MASK
        return value

    def _local(self, name: str, value: str) -> str:
        masked = mask_value(name, value)
        if masked != value:
            self._note("local variable")
        return masked

    def _note(self, kind: str) -> None:
        self._counts[kind] += 1

    def text(self, text: str) -> str:
        """Return a text without secrets and replaced names."""
        masked = self._done.get(text)
        if masked is None:
            masked = self._masked(text)
            if len(text) < MAX_TEXT:
                if len(self._done) >= MAX_DONE:
                    self._done.clear()
                self._done[text] = masked
        return masked

    def _masked(self, text: str) -> str:
        masked = text
        if not text.isascii():
            # A lone surrogate cannot be written.
            masked = text.encode("utf-8", "backslashreplace").decode()
        if self.redaction.secrets and len(text) > 3:
            if MASK in text:
                self._counts[form.CAME_MASKED] += text.count(MASK)
            masked = mask_text(masked, self._note)
        masked = self._names(masked)
        return masked[:MAX_TEXT] if len(text) <= MAX_TEXT < len(masked) else masked

    def _names(self, text: str) -> str:
        """Return a text with its paths and hosts replaced."""
        if self.redaction.paths and "/" in text:
            text = _PATH.sub(lambda match: self._path(match[0]), text)
        if self.redaction.hosts:
            if "[" in text:
                text = _FOLDED.sub(self._folded, text)
            text = _IPV4.sub(lambda match: self._address(match[0]), text)
            if "::" in text or text.count(":") > 3:
                text = _IPV6.sub(lambda match: self._address(match[0]), text)
            text = _WORD.sub(lambda match: self._host(match[0]), text)
        return text

    def _path(self, path: str) -> str:
        if path[0] not in "/~." and not any(part in self._folders for part in path.split("/")):
            return path  # `and/or`
        inside = _LIBRARY.search(path)
        head, tail = (path[: inside.start()], path[inside.start() :]) if inside else (path, "")
        parts = head.split("/")
        last = len(parts) - 1 if not tail else -1
        for place, part in enumerate(parts):
            kept = place == last and (_KEPT_NAME.fullmatch(part) or parts[place - 1] in _PROGRAMS)
            if _is_own(part) and not kept:
                parts[place] = self._folders.setdefault(part, f"folder-{len(self._folders) + 1}")
        return "/".join(parts) + tail

    def _host(self, word: str) -> str:
        stand_in = self._hosts.get(word)
        if stand_in is not None:
            return stand_in
        first, dot, domain = word.partition(".")
        if dot and first in self._hosts and not _FILE.fullmatch(word):
            return (
                self._hosts[first] if not domain.isdecimal() else f"{self._hosts[first]}.{domain}"
            )
        return self._parts(word)

    def _parts(self, word: str) -> str:
        """Return a word with the names of hosts in it replaced, as in `train-gpu7.log`."""
        parts = _BETWEEN.split(word)
        if len(parts) == 1 or len(parts) > MAX_PARTS:
            return word
        replaced, place = [], 0
        while place < len(parts):
            ends = range(len(parts), place, -2)
            end = next((at for at in ends if "".join(parts[place:at]) in self._hosts), place + 1)
            name = "".join(parts[place:end])
            # `train.py` is a file and `train_step` a function, even if a host's name is train.
            file = place == 0 and end == len(parts) - 2 and bool(_FILE.fullmatch(word))
            code = name.isalpha() and (file or "_" in (*parts[:place][-1:], *parts[end:][:1]))
            replaced.append(name if code else self._hosts.get(name, name))
            place = end
        return "".join(replaced)

    def _folded(self, match: re.Match[str]) -> str:
        """Return folded names of hosts replaced: `gpu[01-16]`, `r[1-2]n[1-4]-ib`."""
        shape = _NUMBERS.sub("#", match[0])
        if not any(item in shape for item in self._shapes):
            return match[0]
        is_known = shape.partition(".")[0] in self._shapes
        names = node_sets.unfold(match[0])
        replaced = [
            "host" if is_known and name.partition(".")[0] not in self._hosts else self._host(name)
            for name in names
        ]
        if replaced == names:
            return "host" if is_known and not names else match[0]
        return node_sets.fold(replaced)

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            head, _, port = text.rpartition(":")
            replaced = self._address(head) if _is_address(head) else head
            return f"[{replaced}]:{port}" if replaced != head else text
        if address.is_loopback or address.is_unspecified:
            return text
        number = len(self._addresses) + 1
        # RFC 2544 and RFC 3849: addresses reserved for benchmarks and documentation.
        new = f"198.18.{number >> 8 & 255}.{number & 255}"
        if address.version == 6:
            new = f"2001:db8::{number:x}"
        if text in self._made_up:
            return text
        replaced = self._addresses.setdefault(text, new)
        self._made_up.add(replaced)
        return replaced


_is_secret_name = lru_cache(maxsize=4096)(is_secret_name)


def _with_paths(snapshot: Snapshot) -> Iterable[str]:
    """Yield texts of a snapshot that hold whole paths."""
    for frames in snapshot.stacks.values():
        yield from (frame.file for frame in frames)
    for job in snapshot.jobs:
        for process in (*job.launchers, *(p for r in job.ranks for p in (r.process, *r.children))):
            yield from (process.cwd or "", process.exe or "", *process.outputs, *process.cmdline)
    yield from (output.path for output in snapshot.outputs)


def _is_own(part: str) -> bool:
    """Whether a part of a path may identify a user."""
    return bool(part) and not (part in _COMMON or part.isdecimal() or _INSIDE.fullmatch(part))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _short(file: str, short: str) -> str:
    """Return the short form of a path with replaced folders: as many of its parts."""
    return short if _LIBRARY.search(file) else "/".join(file.split("/")[-short.count("/") - 1 :])
