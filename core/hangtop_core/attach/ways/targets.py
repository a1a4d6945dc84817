"""Choice of nodes: folded node sets and groups, exclusions and host files.

Node sets and groups are ClusterShell's (``gpu[001-128]``, ``@group``, ``a-z!b``), so a site's
groups.conf works here too. An undefined group is an error, because an empty answer would read as
"nothing runs there".
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError, GroupSourceNoUpcall

from hangtop_core.attach.ways import node_groups
from hangtop_core.errors import UsageError
from hangtop_core.text import node_sets
from hangtop_core.text.addresses import is_name
from hangtop_core.text.clean import clean
from hangtop_core.text.node_sets import MAX_TEXT, digits_inside, is_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

MAX_NODES = 16_384
MAX_HOSTFILE = 8 << 20
"""Maximum bytes of a host file."""
MAX_SPANS = 4 * MAX_NODES
"""Maximum numbers in all ranges of an expression, before exclusions."""

MAX_NAMES = MAX_SPANS
"""Maximum names in all sets of a file or of an option, repeated ones included."""

_WITH_GROUPS = re.compile(r"(?!.*[@:]-)[A-Za-z0-9_.:%@,!&^\[\]*?/+-]+")
"""Allowed characters of an expression with groups. A site's groups.conf may have commands for
groups (`map: ... $GROUP`): ClusterShell passes them to a shell with the group's name in them. So a
name must have no special meaning for a shell, and be no option."""
# Each begins where a run of blanks does, so that a long one costs no quadratic time.
_BETWEEN = re.compile(r"(?<!\s)\s*([,!&^])\s*")
_LOGIN = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+@[A-Za-z0-9_.\[\]-]+")
"""`alice@n1`, as for ssh; NodeSet would take the second half for a group."""
_INSIDE = re.compile(r"\[[^\]]*")
_BLANKS = re.compile(r"(?<!\s)\s*([\[,/-])\s*")
_PATTERN = re.compile(r"(?:^|,)((?![@,])(?:\[[^\]]*\]|[^\[,!&^])*[*?](?:\[[^\]]*\]|[^\[,!&^])*)")
"""A name with wildcards that adds nodes; one that removes nodes may match none."""
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
"""A name that means itself."""
_SLOTS = re.compile(r"^([^:\s]+):\d+$")


def expand(expression: str, what: str = "--nodes") -> tuple[str, ...]:
    """Return the nodes of a node set expression, in its order.

    Raises:
        UsageError: it cannot be parsed, names an unknown group, or contains an invalid node name.
    """
    if len(expression) > MAX_TEXT:
        text = f"{len(expression):,} characters, {MAX_TEXT:,} at most"
        raise UsageError(f"{what}: {text}", "--hostfile FILE takes nodes one a line.")
    expression = _INSIDE.sub(lambda match: _BLANKS.sub(r"\1", match[0]), expression)
    if not is_bounded(expression, MAX_SPANS):
        text = f"more than {MAX_NODES} nodes, or no plain ranges,"
        raise UsageError(f"{what}: {text} in {clean(expression, 80)!r}")
    if login := _LOGIN.search(expression):
        raise UsageError(
            f"{what}: {clean(login.group(), 80)!r}: nodes are named without a user",
            "-l USER says it for all nodes, your ssh configuration for each.",
        )
    expression = digits_inside(_BETWEEN.sub(r"\1", expression.strip()))
    if "@" in expression and not _WITH_GROUPS.fullmatch(expression):
        raise UsageError(
            f"{what}: {clean(expression, 80)!r} names no group",
            "The name of a group is letters, digits, dots, dashes and underscores: @gpu, @rack:r1.",
        )
    names = _resolve(expression, what)
    for name in names:
        check_name(name, what)
    return names


def _resolve(expression: str, what: str) -> tuple[str, ...]:
    sets, groups = node_sets.library(), node_groups.configured(node_groups.config_files())
    names_of = cache(partial(_names_of_part, sets.NodeSet, groups))
    try:
        for pattern in _PATTERN.findall(expression):
            if not names_of(pattern):
                raise node_groups.GroupError(f"no node of your groups matches {pattern!r}")
        nodes = node_sets.combined(expression, names_of, MAX_NAMES)
        if nodes is None or len(nodes) > MAX_NODES:
            raise UsageError(f"{what}: more than {MAX_NODES} nodes")
        return tuple(nodes)
    except GroupSourceNoUpcall as error:
        text = f"group source {error.group_source.name!r} has no command {str(error)!r}"
        raise UsageError(f"{what}: {clean(text, 200)}", node_groups.where()) from error
    except (node_groups.GroupError, GroupResolverError, GroupSourceError) as error:
        raise UsageError(f"{what}: {clean(str(error), 200)}", node_groups.where()) from error
    except (sets.NodeSetException, ValueError, RecursionError) as error:
        if isinstance(error.__context__, RecursionError):
            text = "your groups contain one another"
            raise UsageError(f"{what}: {text}", node_groups.where()) from error
        # A ValueError is of a number with thousands of digits.
        raise UsageError(f"{what}: {clean(str(error), 200)}") from error


def _names_of_part(
    node_set: Callable[..., Any], groups: node_groups.Groups, part: str
) -> tuple[str, ...]:
    if _PLAIN.fullmatch(part):
        return (part,)
    return tuple(str(name) for name in node_set(part, resolver=groups))


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be a node's name.

    Raises:
        UsageError: it cannot.
    """
    if not is_name(name):
        raise UsageError(
            f"{what}: {clean(name, 80)!r} is no node name",
            "A node name is letters, digits, dots, dashes and underscores, and starts with a\n"
            "letter or a digit. Users are given with -l USER, ports in ~/.ssh/config.",
        )
    return name


class Names:
    """The nodes of several sets, each once, in order, with a limit on all names."""

    def __init__(self) -> None:
        self.nodes: dict[str, None] = {}
        self._expanded: dict[str, tuple[str, ...]] = {}
        self._names_left = MAX_NAMES

    def add(self, expression: str, what: str) -> tuple[str, ...]:
        """Add and return the nodes of a set; the same set again costs nothing.

        Raises:
            UsageError: it is no set of nodes, or there are too many nodes or names in all.
        """
        if expression not in self._expanded:
            self._expanded[expression] = expand(expression, what)
            self.take(self._expanded[expression], what)
        return self._expanded[expression]

    def take(self, nodes: tuple[str, ...], what: str) -> None:
        """Add some nodes.

        Raises:
            UsageError: there are too many in all.
        """
        self.nodes.update(dict.fromkeys(nodes))
        self._names_left -= len(nodes)
        if len(self.nodes) > MAX_NODES:
            raise UsageError(f"{what}: more than {MAX_NODES} nodes in all")
        if self._names_left < 0:
            raise UsageError(
                f"{what}: more than {MAX_NAMES} names in all, with those that come again",
                "Name each node once.",
            )


def read_hostfile(path: Path) -> tuple[str, ...]:
    """Return the nodes of a host file, each once, in its order.

    A host file has one host a line, as ``host``, ``host:slots`` (MPICH, Hydra), ``host slots=N``
    (Open MPI, DeepSpeed) or ``host cpus`` (PBS and others repeat hosts instead); a host may be a
    folded set; ``#`` begins a comment.

    Raises:
        UsageError: it cannot be read, or a line names no host.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_HOSTFILE + 1)
    except OSError as error:
        raise UsageError(f"--hostfile {path}: {error.strerror}") from error
    if len(data) > MAX_HOSTFILE:
        raise UsageError(
            f"--hostfile {path}: has over {MAX_HOSTFILE >> 20} MiB: it is no host file"
        )
    lines = data.decode("utf-8", "replace").splitlines()
    names = Names()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = _SLOTS.match(words[0])
        name = slots[1] if slots else words[0]
        names.add(name, f"{path}:{number}")
    if not names.nodes:
        raise UsageError(f"--hostfile {path}: no host in it")
    return tuple(names.nodes)


def select(
    nodes: Sequence[str], exclude: Sequence[str], hostfiles: Iterable[Path]
) -> tuple[str, ...]:
    """Return the nodes that the target options name, each once, in their order.

    Raises:
        UsageError: an option cannot be parsed, or no node is left.
    """
    asked, excluded = Names(), Names()
    for path in hostfiles:
        asked.take(read_hostfile(path), f"--hostfile {path}")
    for expression in nodes:
        asked.add(expression, "--nodes")
    for expression in exclude:
        excluded.add(expression, "--exclude")
    left = tuple(name for name in asked.nodes if name not in excluded.nodes)
    if not left:
        why = "all of them are excluded" if asked.nodes else "the expression is empty"
        raise UsageError(f"no node is left: {why}")
    return left
