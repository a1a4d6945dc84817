"""Joining of processes that belong to one job despite different data: restarts, nodes that differ.

Pure, like `hangtop_core.jobs.grouping`, which groups by the processes' own data; this module
handles the exceptions.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.text import launchers as launchline
from hangtop_core.text.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.model.node.places import Places
    from hangtop_core.model.snapshot import Job, Process

TOGETHER_S = 600.0
"""Seconds within which the nodes of one launch are started, by script or by hand."""
EARLIER = " attempt "
"""Part of the key of ranks left from an earlier attempt."""

AGAIN = " again"
"""Part of the key of ranks with the numbers of a job that already had all of its ranks."""
OLDER = " world "
"""Part of the key of ranks that came to the port of another job."""
BEFORE_S = 2.0
"""Seconds by which the starts of ranks of one launch may differ."""


class LaunchInfo(NamedTuple):
    """The launch data that a process of a job has in its environment."""

    run_id: str | None
    slurm: str | None
    store: tuple[str, str] | None
    """Address and port of the store."""
    size: int | None
    """World size."""
    attempt: str | None
    """How often its launcher has restarted ranks."""


_NAMES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    *launchline.WORLD_SIZES,
)


def launch_info(env: Mapping[str, str]) -> LaunchInfo:
    """Return the launch data of an environment; the same object for equal data."""
    return _launch_info(*map(env.get, _NAMES))


@lru_cache(1024)
def _launch_info(*texts: str | None) -> LaunchInfo:
    env = {name: text for name, text in zip(_NAMES, texts, strict=True) if text is not None}
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    return LaunchInfo(
        env.get("TORCHELASTIC_RUN_ID"),
        env.get("SLURM_JOB_ID"),
        (address, port) if address and port else None,
        launchline.number_in(env, launchline.WORLD_SIZES),
        env.get("TORCHELASTIC_RESTART_COUNT"),
    )


class Member:
    """A process and its node."""

    __slots__ = ("info", "is_started", "node", "process", "starter")

    def __init__(
        self, node: str, process: Process, parent: int = 0, info: LaunchInfo | None = None
    ) -> None:
        """Make a member; ``parent`` is its starter as known before: an orphan reports 1."""
        self.node = node
        self.process = process
        self.info = info or launch_info(process.env)
        self.starter = starter = parent or process.launcher_pid or process.ppid
        """Pid of the process that started it; 1 or less when unknown."""
        self.is_started = starter > 1 or process.launcher_pid == 1
        """Whether the starter is known: pid 1 adopts orphans, but in a container it may be the
        starter."""

    @property
    def size(self) -> int | None:
        """Return the world size that a rank was given."""
        return _size(self.process, self.info.size)


class Parts(Struct):
    """The processes of one job."""

    ranks: list[Member]
    launchers: list[Member]
    unnumbered: list[Member]

    @property
    def members(self) -> list[Member]:
        """Return all processes."""
        return [*self.ranks, *self.launchers, *self.unnumbered]


def master(process: Process) -> tuple[str, str] | None:
    """Return address and port of the store that a rank was given, or None."""
    address, port = process.env.get("MASTER_ADDR"), process.env.get("MASTER_PORT")
    return (address, port) if address and port else None


def world_size(process: Process) -> int | None:
    """Return the world size that a rank was given."""
    return _size(process, launchline.number_in(process.env, launchline.WORLD_SIZES))


def _size(process: Process, given: int | None) -> int | None:
    """Return the world size of a rank whose variables say ``given``.

    Where such a variable is inherited with a RANK of another process, it counts nodes.
    """
    if process.rank_source == "init_process_group" or (
        process.rank is None and "RANK" in process.env
    ):
        return process.told_size
    return given if given is not None else _size_by_call(process)


def _size_by_call(process: Process) -> int | None:
    # A process that joins as another rank than the job's may join a part of it.
    own = process.rank_source == "mp.spawn" or None in (process.rank, process.told_rank)
    own = own or process.told_rank == process.rank
    return process.told_size if own else None


def size_name(job: Job) -> str:
    """Return the name of the source of the world size: a variable, or an argument."""
    env = job.ranks[0].process.env if job.ranks else {}
    by_argument = [rank for rank in job.ranks if rank.process.told_size is not None][:1]
    by_call = by_argument and launchline.number_in(env, launchline.WORLD_SIZES) is None
    return "world_size of init_process_group" if by_call else "WORLD_SIZE"


def once(members: Iterable[Member], places: Places) -> list[Member]:
    """Remove processes that are seen twice because a machine is observed under two names.

    Containers of one machine have its boot id, and pids of their own, which begin alike: only a
    process with the same rank and the same command is the same.
    """
    keys: set[tuple[object, ...]] = set()
    unique = []
    ordered = sorted(members, key=lambda m: (m.node, m.process.pid, m.process.start))
    nodes = {member.node for member in ordered}
    if len({places.machine(node) for node in nodes}) == len(nodes):
        return ordered
    for member in ordered:
        process = member.process
        at = (places.machine(member.node), process.pid, process.start, process.started_at)
        key = (*at, process.rank, process.cmdline)
        if key not in keys:
            keys.add(key)
            unique.append(member)
    return unique


def without_earlier(ranks: Mapping[str, list[Member]]) -> dict[str, list[Member]]:
    """Remove the ranks of earlier attempts, by the launcher that started them.

    torchrun ends its ranks and restarts them, mostly with another port. Exited ranks of an earlier
    attempt are dropped; a live one, because it cannot be killed, becomes a job of its own, so that
    it neither counts as part of the new attempt nor disappears. Every launcher counts attempts for
    itself (TORCHELASTIC_RESTART_COUNT: other nodes need not count alike), so only ranks of one
    launcher are compared.
    """
    newest: dict[tuple[str, int], tuple[float, _Attempt]] = {}
    attempts: list[tuple[str, Member, _Attempt | None]] = []
    for key, members in ranks.items():
        for member in members:
            attempts.append((key, member, attempt := _attempt(member)))
            if attempt is not None:
                began, launcher = member.process.started_at, (member.node, member.starter)
                if launcher not in newest or newest[launcher][0] < began:
                    newest[launcher] = began, attempt
    kept: dict[str, list[Member]] = defaultdict(list)
    for key, member, attempt in attempts:
        if attempt is None or newest[member.node, member.starter][1] == attempt:
            kept[key].append(member)
        elif member.process.gone_at is None:
            kept[f"{key}{EARLIER}{attempt[0]}"].append(member)
    return kept


def without_older(ranks: Mapping[str, list[Member]]) -> dict[str, list[Member]]:
    """Split jobs that were given one port: the older job with all of its ranks comes first.

    Such a job waits for no further rank. Where ranks with another world size, or with the numbers
    of its ranks, come to its port later, they connect to its store, not to their own.
    """
    split: dict[str, list[Member]] = {}
    for key, members in ranks.items():
        sizes = {member.size for member in members}
        if len(sizes) == 1:
            first, later = _launches(members)
            split[key] = first
            if later:
                split[f"{key}{AGAIN}"] = later
            continue
        own = [size for size in sizes if size is not None and _is_older(members, size)]
        for member in members:
            size = member.size
            home = f"{key}{OLDER}{size}" if own and size not in own else key
            split.setdefault(home, []).append(member)
    return split


def _launches(members: list[Member]) -> tuple[list[Member], list[Member]]:
    """Return the ranks of the first launch, and those of a later one with the same numbers.

    Where every number was taken before a further process came with one of them, that process
    belongs to another launch: it finds the port in use, or the store of the other job.
    """
    first: dict[int, float] = {}
    twice = False
    for member in members:
        number, began = member.process.rank, member.process.started_at
        if member.process.gone_at is None and number is not None:
            twice = twice or number in first
            first[number] = min(began, first.get(number, began))
    if not twice or set(first) != set(range(members[0].size or 0)):
        return members, []
    until = max(first.values()) + BEFORE_S
    later = [member for member in members if member.process.started_at > until]
    return [member for member in members if member.process.started_at <= until], later


def _is_older(members: list[Member], size: int) -> bool:
    """Return whether the ranks of one world size are complete, and older than all others."""
    own = [member.process for member in members if member.size == size]
    starts = [member.process.started_at for member in members if member.size != size]
    whole = {process.rank for process in own} == set(range(size)) if len(own) >= size else False
    return whole and max(process.started_at for process in own) + BEFORE_S < min(starts)


_Attempt = tuple[str, tuple[str, str] | None]
"""Number of the attempt, and its store."""


def _attempt(member: Member) -> _Attempt | None:
    """Return the attempt of a rank's launcher; None without a count."""
    count = member.info.attempt
    return None if count is None or not member.is_started else (count, member.info.store)


class _Part(NamedTuple):
    """Data that decide whether two groups of processes must be one job."""

    key: str
    numbers: frozenset[int]
    nodes: frozenset[str]
    starters: frozenset[tuple[str, int]]
    ids: frozenset[str]
    slurm: str | None
    started_at: float
    own_port: str | None
    """The port of its store, where the store is on the part's own node."""
    one_node: bool
    """Whether its environment says that all of its ranks are on one node."""


def joined(parts: Mapping[str, Parts], places: Places) -> dict[str, str]:
    """Map the keys of groups to the key of the group they belong to.

    Groups are one job if each has only a part of its world size, they run the same script with the
    same arguments for the same user and the same world size, on different nodes or from one parent,
    and they were started together. Their nodes were given different data: another address or port,
    or localhost on each. They can never connect to one another, which is the point.
    """
    alike: dict[object, list[_Part]] = defaultdict(list)
    for key, group_parts in parts.items():
        kind, part = _part(key, group_parts, places) if EARLIER not in key else (None, None)
        if part is not None:
            alike[kind].append(part)
    into: dict[str, str] = {}
    for same in alike.values():
        clusters: list[_Cluster] = []
        for part in sorted(same, key=lambda p: (min(p.numbers, default=0), p.key)):
            home = next((c for c in clusters if c.takes(part)), None)
            if home is None:
                clusters.append(_Cluster(part))
            else:
                home.add(part)
                into[part.key] = home.parts[0].key
    return into


class _Cluster:
    """Parts that must all be one job with each other.

    Each of a thousand nodes may be a part of its own: the data of a cluster are merged, so that a
    new part is compared with each member only where the merged data do not decide.
    """

    def __init__(self, first: _Part) -> None:
        self.parts = [first]
        self._numbers, self._nodes = set(first.numbers), set(first.nodes)
        self._ports, self._one_node = {first.own_port}, first.one_node
        self._first = self._last = first.started_at

    def add(self, part: _Part) -> None:
        """Add another part."""
        self.parts.append(part)
        self._numbers |= part.numbers
        self._nodes |= part.nodes
        self._ports.add(part.own_port)
        self._one_node = self._one_node or part.one_node
        self._first = min(self._first, part.started_at)
        self._last = max(self._last, part.started_at)

    def takes(self, part: _Part) -> bool:
        """Return whether a part is one job with every other part."""
        apart = self._nodes.isdisjoint(part.nodes) and not (self._one_node or part.one_node)
        together = max(self._last, part.started_at) - min(self._first, part.started_at)
        port = part.own_port is not None and self._ports == {part.own_port}
        fit = port or self._numbers.isdisjoint(part.numbers)
        if apart and fit and together < TOGETHER_S and self.parts[0].slurm == part.slurm:
            return True
        return all(_same_job(part, member) for member in self.parts)


def _part(key: str, parts: Parts, places: Places) -> tuple[object, _Part | None]:
    live = [m for m in parts.ranks if m.process.gone_at is None]
    heads = live or _node_launchers(parts)
    launch = _launch(heads[0], bool(live)) if heads else None
    if launch is None:
        return None, None
    program, size, (address, port) = launch
    numbers = frozenset(m.process.rank for m in live if m.process.rank is not None)
    if len(numbers) >= size:
        return None, None
    head = heads[0]
    nodes = frozenset(m.node for m in heads)
    own = is_loopback(address) or places.node_of(address, head.node) in nodes
    return (bool(live), head.process.uid, program, size), _Part(
        key=key,
        numbers=numbers,
        nodes=nodes,
        starters=frozenset((m.node, m.starter) for m in heads if m.is_started),
        ids=frozenset(filter(None, (head.info.slurm, head.info.run_id))) - {"none"},
        slurm=head.info.slurm,
        started_at=min(m.process.started_at for m in heads),
        own_port=port if own else None,
        one_node=_local_size(head.process) == str(size),
    )


def _launch(head: Member, is_rank: bool) -> tuple[tuple[str, ...], int, tuple[str, str]] | None:
    """Return program, world size and store of a job; None where any is unknown."""
    cmdline = head.process.cmdline
    program = launchline.program(cmdline)
    size = head.size if is_rank else launchline.announced_world_size(cmdline)
    store = head.info.store if is_rank else launchline.endpoint(cmdline)
    if program is None or size is None or store is None:
        return None
    return program, size, store


def _local_size(process: Process) -> str | None:
    return process.env.get("LOCAL_WORLD_SIZE") or process.env.get("LOCAL_SIZE")


def _node_launchers(parts: Parts) -> list[Member]:
    """Return the live launchers that span nodes, of a job that has no ranks yet."""
    return [
        m
        for m in parts.launchers
        if not parts.ranks
        and m.process.gone_at is None
        and launchline.spans_nodes(m.process.cmdline)
    ]


def _same_job(left: _Part, right: _Part) -> bool:
    if left.slurm != right.slurm:
        return False
    apart = left.nodes.isdisjoint(right.nodes) and not left.one_node and not right.one_node
    apart = apart or bool(left.starters & right.starters)
    together = abs(left.started_at - right.started_at) < TOGETHER_S or bool(left.ids & right.ids)
    fit = left.numbers.isdisjoint(right.numbers) or (
        left.own_port is not None and left.own_port == right.own_port
    )
    return apart and together and fit
