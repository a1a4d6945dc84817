"""Groups of nodes (`@gpu`, `@rack:r1`, `@*`), as the site and the user configure them.

The files are ClusterShell's, so the groups of `nodeset -l` work here. Its packages install an
example with 131 hosts: below the Python prefix, with `pip install --user` below `~/.local`, by
distributions below `/etc`. The example is ignored everywhere, because no administrator wrote it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from configparser import ConfigParser
from configparser import Error as ConfigError
from functools import lru_cache, partial, wraps
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from ClusterShell.NodeUtils import (
    GroupResolverConfig,
    GroupResolverError,
    GroupResolverSourceError,
    GroupSourceError,
    GroupSourceNoUpcall,
)

from hangtop_core.attach.ways import subprocesses
from hangtop_core.text.clean import clean
from hangtop_core.text.node_sets import is_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NAME = "groups.conf"
SITE = "/etc/clustershell"
NO_GROUPS = "no groups are configured from which wildcards could choose"
ILLEGAL = frozenset("@,!&^*")
"""Characters that ClusterShell allows in no name of a group."""
WILD = frozenset("*?")
ANSWER_S = 10.0
"""Seconds that a command of a group source may take."""
MAX_ANSWER = 1 << 20
"""Maximum bytes of its output."""
MAX_NODES = 32_768
"""Maximum nodes of a group."""
MAX_FILE = 1 << 20
"""Maximum bytes of a file that is compared with the example."""
EXAMPLE = """\
adm: example0
oss: example4 example5
mds: example6
io: example[4-6]
compute: example[32-159]
gpu: example[156-159]
all: example[4-6,32-159]"""
"""The groups of the example, unchanged since ClusterShell 1.7."""


class GroupError(Exception):
    """A group, or its source, is not defined or cannot be read."""


def config_files() -> tuple[Path, ...]:
    """Return the files that may define groups, by increasing priority."""
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    user = xdg if os.path.isabs(xdg) else "~/.config"
    folders = [SITE, "~/.local/etc/clustershell", os.path.join(user, "clustershell")]
    paths = [os.path.join(os.path.expanduser(folder), NAME) for folder in folders]
    if own := os.environ.get("CLUSTERSHELL_CFGDIR"):
        paths.append(os.path.abspath(os.path.join(own, NAME)))
    # Without a home `~` stays as it is, and would be a folder below the working directory.
    return tuple(Path(path) for path in paths if os.path.isabs(path))


def where() -> str:
    """Return the files that were checked, one a line, and why some were not used."""
    lines = (f"  {clean(str(path), 300)}: {_standing(path)}" for path in config_files())
    return "\n".join(("Groups come from these files of ClusterShell:", *lines))


def _standing(path: Path) -> str:
    if not path.is_file():
        return "not a file" if path.exists() else "not there"
    if not os.access(path, os.R_OK):
        return "not readable"
    return "the example of ClusterShell, which counts as nothing" if is_example(path) else "read"


@lru_cache(maxsize=4)
def configured(paths: tuple[Path, ...]) -> Groups:
    """Return the groups of these files, which are read at the first query."""
    return Groups(paths)


def is_example(path: Path) -> bool:
    """Return whether a groups.conf defines nothing but the groups of ClusterShell's example."""
    folder = path.parent
    added = (*folder.glob("groups.conf.d/*.conf"), *folder.glob("groups.d/*.yaml"))
    return not added and _holds_example(folder) and _sections(path) == {"Main", "local"}


def _sections(path: Path) -> set[str]:
    config = ConfigParser()
    with contextlib.suppress(ConfigError, UnicodeDecodeError):
        config.read(path)
    return set(config.sections())


def _holds_example(folder: Path) -> bool:
    """Return whether ClusterShell's groups.conf would find its example here (source `local`)."""
    path = folder / "groups.d" / "local.cfg"
    if (folder / "groups").exists() or not path.is_file() or path.stat().st_size > MAX_FILE:
        return False
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return "\n".join(line.strip() for line in lines if line.strip()[:1] not in ("", "#")) == EXAMPLE


def _explained(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Convert errors of a source into `GroupError` with an explanation."""

    @wraps(function)
    def wrapper(*arguments: Any) -> list[str]:
        try:
            return function(*arguments)
        except GroupSourceNoUpcall:
            raise  # ClusterShell has another method then
        except (ConfigError, UnicodeDecodeError) as error:
            raise GroupError(f"your groups cannot be read: {error}") from error

    return wrapper


def _answer(source: Any, query: str, words: Mapping[str, str]) -> str:
    """Return the output of a group source's command, within limits that ClusterShell lacks."""
    command = Template(source.upcalls[query]).safe_substitute(words)
    shell = ["/bin/sh", "-c", command]
    try:
        done = subprocesses.run(shell, ANSWER_S, MAX_ANSWER, os.environ, source.cfgdir)
    except subprocess.TimeoutExpired:
        text = f"this command of your groups did not end within {ANSWER_S:g} s: {command}"
        raise GroupError(text) from None
    except subprocesses.TooMuchOutputError:
        text = f"this command of your groups printed over {MAX_ANSWER >> 20} MiB: {command}"
        raise GroupError(text) from None
    if done.code:
        why = f": {done.err.strip()}" if done.err.strip() else ""
        raise GroupError(f"this command of your groups failed: {command}{why}")
    return done.out.strip()


def _bounded(nodes: list[str], group: str) -> list[str]:
    if not is_bounded(",".join(nodes), MAX_NODES):
        raise GroupError(f"{group} has more than {MAX_NODES:,} nodes, or no plain ranges")
    return nodes


class Groups(GroupResolverConfig):  # type: ignore[misc]
    """The configured groups; any other is an error, where ClusterShell has an empty set."""

    _default_source: Any

    def __init__(self, paths: Sequence[Path]) -> None:
        used = [str(path) for path in paths if path.is_file() and not is_example(path)]
        super().__init__(used, ILLEGAL)

    def _late_init(self) -> None:
        super()._late_init()
        for name, source in tuple(self._sources.items()):
            source._upcall_read = partial(_answer, source)
            command = getattr(source, "upcalls", {}).get("map", "")
            if "local.cfg" in command and _holds_example(Path(source.cfgdir)):
                del self._sources[name]
                if self._default_source is source:
                    self._default_source = None

    def _source(self, namespace: str | None) -> Any:
        try:
            return super()._source(namespace)
        except GroupResolverSourceError:
            text = f"group source {namespace!r} is not defined" if namespace else NO_GROUPS
            raise GroupError(text) from None

    @_explained
    def all_nodes(self, namespace: str | None = None) -> list[str]:
        """Return the nodes of all groups of a source, which wildcards stand for."""
        return _bounded(list(super().all_nodes(namespace)), "the list of all nodes")

    @_explained
    def grouplist(self, namespace: str | None = None) -> list[str]:
        """Return the names of the groups of a source."""
        return list(super().grouplist(namespace))

    @_explained
    def group_nodes(self, group: str, namespace: str | None = None) -> list[str]:
        """Return the nodes of a group.

        Raises:
            GroupError: the group is not defined: it has no nodes, and is not listed either.
        """
        name = f"@{namespace}:{group}" if namespace else f"@{group}"
        if WILD.isdisjoint(group) and (namespace or self.default_source_name):
            nodes = _bounded(list(super().group_nodes(group, namespace)), f"group {name!r}")
            if nodes or self._lists(group, namespace):
                return nodes
        raise GroupError(f"group {name!r} is not defined")

    def _lists(self, group: str, namespace: str | None) -> bool:
        try:
            return group in self.grouplist(namespace)
        except (GroupSourceError, GroupResolverError, GroupError):
            return False
