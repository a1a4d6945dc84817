"""What belongs to one job although it says otherwise: restarts, and nodes told different things.

Pure, like `hangtop_core.jobs.grouping`, which sorts by what processes say; this looks at what is
odd there.
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
"""Nodes of one launch are started within this, by script or by hand."""
EARLIER = " attempt "
"""In the key of what is left of an earlier attempt."""

AGAIN = " again"
"""In the key of ranks with the numbers of a job that already had all of its ranks."""
OLDER = " world "
"""In the key of ranks that came to the port of another job."""
BEFORE_S = 2.0
"""Seconds by which ranks of one launch are started apart without being two jobs."""


class Told(NamedTuple):
    """What a launcher told a process of its job, by its environment."""

    run_id: str | None
    slurm: str | None
    store: tuple[str, str] | None
    """Address and port."""
    size: int | None
    """How many ranks there are."""
    attempt: str | None
    """How often its launcher has started ranks anew."""


_TOLD = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    *launchline.WORLD_SIZES,
)


def told_by(env: Mapping[str, str]) -> Told:
    """Return what an environment tells; the same object for all that are told the same."""
    return _told(*map(env.get, _TOLD))


@lru_cache(1024)
def _told(*texts: str | None) -> Told:
    env = {name: text for name, text in zip(_TOLD, texts, strict=True) if text is not None}
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    return Told(
        env.get("TORCHELASTIC_RUN_ID"),
        env.get("SLURM_JOB_ID"),
        (address, port) if address and port else None,
        launchline.number_in(env, launchline.WORLD_SIZES),
        env.get("TORCHELASTIC_RESTART_COUNT"),
    )


class Member:
    """One process and where it runs."""

    __slots__ = ("is_started", "node", "process", "starter", "told")

    def __init__(
        self, node: str, process: Process, parent: int = 0, told: Told | None = None
    ) -> None:
        """``parent`` is what started it, as long as that was known: an orphan's own word is 1."""
        self.node = node
        self.process = process
        self.told = told or told_by(process.env)
        self.starter = starter = parent or process.launcher_pid or process.ppid
        """Pid of what started it, 1 or less when that is not known."""
        self.is_started = starter > 1 or process.launcher_pid == 1
        """Whether that is known: pid 1 adopts orphans, but in a container it may be that."""

    @property
    def size(self) -> int | None:
        """How many ranks there are, as a rank was told."""
        return _size(self.process, self.told.size)


class Parts(Struct):
    """The processes of one job."""

    ranks: list[Member]
    launchers: list[Member]
    unnumbered: list[Member]

    @property
    def everybody(self) -> list[Member]:
        """All of them."""
        return [*self.ranks, *self.launchers, *self.unnumbered]


def master(process: Process) -> tuple[str, str] | None:
    """Return address and port of the store a rank was told, or None."""
    address, port = process.env.get("MASTER_ADDR"), process.env.get("MASTER_PORT")
    return (address, port) if address and port else None


def world_size(process: Process) -> int | None:
    """Return how many ranks there are, as a rank was told."""
    return _size(process, launchline.number_in(process.env, launchline.WORLD_SIZES))


def _size(process: Process, told: int | None) -> int | None:
    """Return how many ranks there are, of a rank that a variable has ``told`` a number.

    Where such a variable is handed down with a RANK that is not its own, it counts nodes.
    """
    if process.rank_source == "init_process_group" or (
        process.rank is None and "RANK" in process.env
    ):
        return process.told_size
    return told if told is not None else _told_by_call(process)


def _told_by_call(process: Process) -> int | None:
    # Who joins as another rank than the job's may join a part of it.
    own = process.rank_source == "mp.spawn" or None in (process.rank, process.told_rank)
    own = own or process.told_rank == process.rank
    return process.told_size if own else None


def size_name(job: Job) -> str:
    """By what its ranks were told how many there are: a variable, or an argument."""
    env = job.ranks[0].process.env if job.ranks else {}
    told = [one for one in job.ranks if one.process.told_size is not None][:1]
    by_call = told and launchline.number_in(env, launchline.WORLD_SIZES) is None
    return "world_size of init_process_group" if by_call else "WORLD_SIZE"


def once(members: Iterable[Member], places: Places) -> list[Member]:
    """Leave out what is seen twice because one machine is observed under two names.

    Containers of one machine have its boot, and numbers of their own, which begin alike: only what
    is the same rank with the same command is the same process.
    """
    seen: set[tuple[object, ...]] = set()
    found = []
    some = sorted(members, key=lambda m: (m.node, m.process.pid, m.process.start))
    nodes = {one.node for one in some}
    if len({places.machine(node) for node in nodes}) == len(nodes):
        return some
    for one in some:
        process = one.process
        at = (places.machine(one.node), process.pid, process.start, process.started_at)
        key = (*at, process.rank, process.cmdline)
        if key not in seen:
            seen.add(key)
            found.append(one)
    return found


def without_earlier(ranks: Mapping[str, list[Member]]) -> dict[str, list[Member]]:
    """Take out the ranks of earlier attempts, by the launcher that started them.

    torchrun ends its ranks and starts them anew, mostly with another port. Those that are gone
    mean nothing any more; one that is still there, because it cannot be killed, is a job of its
    own, for it belongs neither to the new one nor out of sight. Attempts are counted by every
    launcher for itself (TORCHELASTIC_RESTART_COUNT: other nodes need not count alike), so only
    ranks of one launcher are compared.
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
    found: dict[str, list[Member]] = defaultdict(list)
    for key, member, attempt in attempts:
        if attempt is None or newest[member.node, member.starter][1] == attempt:
            found[key].append(member)
        elif member.process.gone_at is None:
            found[f"{key}{EARLIER}{attempt[0]}"].append(member)
    return found


def without_older(ranks: Mapping[str, list[Member]]) -> dict[str, list[Member]]:
    """Take apart jobs that were given one port: who was there before, and has all of its ranks.

    Such a job waits for nobody else. Where ranks that were told another number of ranks, or the
    numbers that its ranks have, come to its port later, they meet at its store, not at their own.
    """
    found: dict[str, list[Member]] = {}
    for key, members in ranks.items():
        sizes = {one.size for one in members}
        if len(sizes) == 1:
            first, later = _launches(members)
            found[key] = first
            if later:
                found[f"{key}{AGAIN}"] = later
            continue
        own = [size for size in sizes if size is not None and _is_older(members, size)]
        for one in members:
            size = one.size
            home = f"{key}{OLDER}{size}" if own and size not in own else key
            found.setdefault(home, []).append(one)
    return found


def _launches(members: list[Member]) -> tuple[list[Member], list[Member]]:
    """Return the ranks of the first launch, and those of a later one with the same numbers.

    Where every number was taken before a process came that has one of them, too, it is of another
    launch: it finds the port in use, or the store of others.
    """
    first: dict[int, float] = {}
    twice = False
    for one in members:
        number, began = one.process.rank, one.process.started_at
        if one.process.gone_at is None and number is not None:
            twice = twice or number in first
            first[number] = min(began, first.get(number, began))
    if not twice or set(first) != set(range(members[0].size or 0)):
        return members, []
    until = max(first.values()) + BEFORE_S
    later = [one for one in members if one.process.started_at > until]
    return [one for one in members if one.process.started_at <= until], later


def _is_older(members: list[Member], size: int) -> bool:
    """Whether those that were told a number of ranks are all there, and began before the others."""
    some = [one.process for one in members if one.size == size]
    rest = [one.process.started_at for one in members if one.size != size]
    whole = {one.rank for one in some} == set(range(size)) if len(some) >= size else False
    return whole and max(one.started_at for one in some) + BEFORE_S < min(rest)


_Attempt = tuple[str, tuple[str, str] | None]
"""Its number, and the store it meets at."""


def _attempt(member: Member) -> _Attempt | None:
    """Which attempt of its launcher a rank is of; None where nobody counts."""
    count = member.told.attempt
    return None if count is None or not member.is_started else (count, member.told.store)


class _Part(NamedTuple):
    """What decides whether two groups of processes must be one job."""

    key: str
    numbers: frozenset[int]
    nodes: frozenset[str]
    starters: frozenset[tuple[str, int]]
    ids: frozenset[str]
    slurm: str | None
    started_at: float
    own_port: str | None
    """The port of its store, where that is on the part's own node."""
    one_node: bool
    """Whether it was told that all of its ranks are on one node."""


def joined(parts: Mapping[str, Parts], places: Places) -> dict[str, str]:
    """Return which groups go into which other one, by key.

    Groups that have each but a part of the ranks they speak of, run the same script with the same
    arguments for the same user and the same number of ranks, on different nodes or from one
    parent, and were started together, are one job whose nodes were told different things: another
    address or port, or localhost on each. They can never find one another, and that is the point.
    """
    alike: dict[object, list[_Part]] = defaultdict(list)
    for key, some in parts.items():
        kind, part = _part(key, some, places) if EARLIER not in key else (None, None)
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
    """Parts of which every two must be one job.

    Each of a thousand nodes may be a part of its own: what all of a cluster have is put together,
    so that a new part is compared with each of them only where that does not tell.
    """

    def __init__(self, first: _Part) -> None:
        self.parts = [first]
        self._numbers, self._nodes = set(first.numbers), set(first.nodes)
        self._ports, self._one_node = {first.own_port}, first.one_node
        self._first = self._last = first.started_at

    def add(self, part: _Part) -> None:
        """Take another part in."""
        self.parts.append(part)
        self._numbers |= part.numbers
        self._nodes |= part.nodes
        self._ports.add(part.own_port)
        self._one_node = self._one_node or part.one_node
        self._first = min(self._first, part.started_at)
        self._last = max(self._last, part.started_at)

    def takes(self, part: _Part) -> bool:
        """Whether a part is one with every other."""
        apart = self._nodes.isdisjoint(part.nodes) and not (self._one_node or part.one_node)
        together = max(self._last, part.started_at) - min(self._first, part.started_at)
        port = part.own_port is not None and self._ports == {part.own_port}
        fit = port or self._numbers.isdisjoint(part.numbers)
        if apart and fit and together < TOGETHER_S and self.parts[0].slurm == part.slurm:
            return True
        return all(_are_one(part, one) for one in self.parts)


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
        ids=frozenset(filter(None, (head.told.slurm, head.told.run_id))) - {"none"},
        slurm=head.told.slurm,
        started_at=min(m.process.started_at for m in heads),
        own_port=port if own else None,
        one_node=_local_size(head.process) == str(size),
    )


def _launch(head: Member, is_rank: bool) -> tuple[tuple[str, ...], int, tuple[str, str]] | None:
    """Return program, world size and store of a job; None where any of them is not known."""
    cmdline = head.process.cmdline
    program = launchline.program(cmdline)
    size = head.size if is_rank else launchline.announced_world_size(cmdline)
    store = head.told.store if is_rank else launchline.endpoint(cmdline)
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


def _are_one(one: _Part, other: _Part) -> bool:
    if one.slurm != other.slurm:
        return False
    apart = one.nodes.isdisjoint(other.nodes) and not one.one_node and not other.one_node
    apart = apart or bool(one.starters & other.starters)
    together = abs(one.started_at - other.started_at) < TOGETHER_S or bool(one.ids & other.ids)
    fit = one.numbers.isdisjoint(other.numbers) or (
        one.own_port is not None and one.own_port == other.own_port
    )
    return apart and together and fit
