"""Select processes that only a stack can show to be ranks or launchers, for `resolver`."""

from __future__ import annotations

from typing import TYPE_CHECKING, FrozenSet, Iterator, Mapping, Optional

from ..ranks import commands, numbering

if TYPE_CHECKING:
    from ..ranks.discovery import Attribution
    from .entry import Entry, Identity

_MOST_ANCESTORS = 64


class Unconfirmed:
    """The process table at one moment, restricted to the pids ``only`` that the user named."""

    def __init__(
        self,
        entries: Mapping[int, Entry],
        roles: Mapping[int, Attribution],
        only: Optional[FrozenSet[int]],
    ) -> None:
        self._entries, self._roles, self._only = entries, roles, only

    def identities(self) -> Iterator[Identity]:
        """Yield processes that may be mp.spawn ranks, or agents of torchrun."""
        named = self._named()
        for entry in self._entries.values():
            may = self._may_be_spawned(entry) or self._may_be_agent(entry) or self._says_rank(entry)
            if may and (named is None or self._is_below(entry, named)):
                yield entry.identity

    def _named(self) -> Optional[FrozenSet[int]]:
        """Return the pids the user named, with the Python programs above them; None for all."""
        if self._only is None:
            return None
        entries = self._entries
        parents = {entries[pid].stat.ppid for pid in self._only if pid in entries}
        return self._only.union(
            pid for pid in parents & entries.keys() if entries[pid].facts.python
        )

    def _is_below(self, entry: Entry, pids: FrozenSet[int]) -> bool:
        """Whether a process or one of its ancestors is in ``pids``."""
        for _ in range(_MOST_ANCESTORS):
            if entry.stat.pid in pids:
                return True
            parent = self._entries.get(entry.stat.ppid)
            if parent is None:
                break
            entry = parent
        return False

    def _may_be_spawned(self, entry: Entry) -> bool:
        parent = self._entries.get(entry.stat.ppid)
        role = self._role(entry.stat.pid)
        if role is not None and role.role == "rank" and role.rank is None:
            return entry.mine and entry.facts.python
        if parent is None or not entry.mine or not entry.facts.python or not parent.facts.python:
            return False
        if role is not None and (role.role != "rank" or role.rank is not None):
            return False
        if commands.helper_role(entry.stat.comm, entry.facts.cmdline):
            return False
        forked = entry.facts.cmdline == parent.facts.cmdline
        return forked or commands.is_spawned(entry.facts.cmdline)

    def _says_rank(self, entry: Entry) -> bool:
        """Whether the title or an argument of a process without a role names a rank."""
        unknown = entry.mine and entry.facts.python and self._role(entry.stat.pid) is None
        return unknown and numbering.says_rank(entry.facts.cmdline)

    def _may_be_agent(self, entry: Entry) -> bool:
        """Whether it may wait to start ranks: it hosts a store, or there are no ranks here."""
        pid = entry.stat.pid
        if not entry.mine or not entry.facts.python or self._role(pid) is not None:
            return False
        hosts = any(name.startswith("pt_tcpstore") for name in entry.threads)
        others = filter(None, map(self._role, self._roles))
        return hosts or all(role.role == "launcher" for role in others)

    def _role(self, pid: int) -> Optional[Attribution]:
        """Return the role of a process, None if it only has one because the user named it."""
        role = self._roles.get(pid)
        top = self._roles.get(role.rank_pid or pid) if role is not None else None
        return None if top is not None and top.rank_source == numbering.NAMED else role
