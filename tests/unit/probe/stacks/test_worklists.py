"""Loops that each turn brings nearer to their end, and those that may go round for ever."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hangtop_probe.stacks import blocks, worklists


def ends(source: str) -> bool:
    """Of the first `while`."""
    text = dedent(source).strip("\n")
    lines = text.encode().split(b"\n")
    first = next(i for i, line in enumerate(lines, 1) if line.strip().startswith(b"while"))
    return worklists.ends(blocks.statements(text.encode()), lines, first)


SEARCH = """
    while queue:
        node = queue.popleft()
        for other in graph[node]:
            if not seen[other]:
                seen[other] = 1
                queue.append(other)
        found += 1
"""
PLAN = """
    while self.open:
        cost, node = heapq.heappop(self.open)
        if node in done:
            continue
        done.add(node)
        for other, way in graph[node]:
            heapq.heappush(self.open, (cost_of[node] + way, other))
"""
MERGE = """
    while len(heap) > 1:
        a = heappop(heap)
        merged.append(a)
"""
SCAN = """
    while i < len(text):  # each character
        if text[i] in rare:
            hits.append(i)
        i += 1
"""
DOWN = """
    while left > 0:
        total = (total * 31 + left) % 97
        left -= 2
"""


PAIRS = """
    while left < right:
        total = a[left] + a[right]
        if total == wanted:
            found.append((left, right))
            left += 1
            right -= 1
        elif total < wanted:
            left += 1
        else:
            right -= 1
"""
SKIP = """
    while i <= j and not done:
        if a[i] < pivot:
            i += 1
            continue
        if a[j] == pivot:
            break
        swap(a, i, j)
        j -= 1
"""


@pytest.mark.parametrize("source", [SEARCH, PLAN, MERGE, SCAN, DOWN, PAIRS, SKIP])
def test_what_is_taken_away_comes_to_its_end(source: str) -> None:
    assert ends(source)


STAYS = """
    while left < right:
        if a[left] < a[right]:
            left += 1
        elif a[left] > a[right]:
            right -= 1
"""
RESET = """
    while left < right:
        if a[left] < a[right]:
            left += 1
        else:
            right = top
            right -= 1
"""
TURNS = """
    while left < right:
        if a[left] == a[right]:
            continue
        left += 1
"""
FLIP = """
    while left < right:
        if a[left]:
            left += 1
        else:
            left, right = right, left
"""
OR = """
    while left < right or more:
        if a[left]:
            left += 1
        else:
            right -= 1
"""
AGAIN = """
    while queue:
        item = queue.popleft()
        if not fits(item):
            skipped[item] = 1
            queue.append(item)
"""
LATER = """
    while queue:
        item, tries = queue.popleft()
        if item not in done:
            done.add(other)
            queue.append((item, tries + 1))
"""
CYCLE = """
    while stack:
        name = stack.pop()
        stack.extend(needs[name])
"""
CHAIN = """
    while parent[node] != node:
        node = parent[node]
"""
MAYBE = """
    while left:
        item = left[-1]
        if room[i] >= item:
            left.pop()
        i = (i + 1) % len(room)
"""
SKIPS = """
    while i < n:
        if bad(i):
            continue
        i += 1
"""
BACK = """
    while i < len(words):
        if words[i] == merged:
            i = 0
        i += 1
"""
GROWS = """
    while i < len(words):
        words.append(words[i])
        i += 1
"""
AWAY = """
    while i < n:
        i -= 1
"""
NEVER = """
    while True:
        queue.pop()
"""
EITHER = """
    while queue or open:
        queue.pop()
"""
ROUNDS = """
    while waiting:
        left = []
        for one in waiting:
            if not fits(one):
                left.append(one)
        waiting = left
"""


@pytest.mark.parametrize(
    "source",
    [
        *(AGAIN, LATER, CYCLE, CHAIN, MAYBE, SKIPS, BACK, GROWS, AWAY, NEVER, EITHER, ROUNDS),
        *(STAYS, RESET, TURNS, FLIP, OR),
    ],
)
def test_what_may_go_round_for_ever_is_not_told_to_end(source: str) -> None:
    assert not ends(source)


def test_a_long_body_and_one_that_is_not_there() -> None:
    assert not ends("while queue:\n    queue.pop()\n" + "    more()\n" * worklists.MAX_BODY)
    assert not ends("while queue: queue.pop()")
    assert not ends("while queue:")
