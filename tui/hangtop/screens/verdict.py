"""Screen 5: the verdict, evidence, next steps, other explanations, timeline, blind spots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Horizontal

from hangtop.screens.page import Page
from hangtop.terminal.pane_heights import share
from hangtop.terminal.spans import EMPTY, labelled, line, second_in_view, wrap_all
from hangtop.views.common import rank_key, span
from hangtop.views.overview import verdict_title
from hangtop.views.verdict import verdict as views
from hangtop.views.verdict.goals import ENVIRONMENT, Goal
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.widget import Widget

    from hangtop.keys.items import Item
    from hangtop.terminal.spans import Line
    from hangtop_core.diagnosis import Diagnosis, Verdict


class VerdictPage(Page):
    """Verdict, evidence, steps, other explanations, blind spots."""

    CSS_PATH = "verdict.tcss"
    NAME = "verdict"
    PANES = ("evidence", "steps", "others", "timeline", "blind", "full")
    PINNED = "full"

    def __init__(self) -> None:
        super().__init__()
        self.shown: str | None = None
        """Key of the shown verdict; None for the first."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield TextPane("VERDICT", pane_id="full")
        yield ItemList("EVIDENCE", pane_id="evidence")
        with Horizontal(id="middle"):
            yield ItemList("WHAT TO DO", pane_id="steps")
            yield ItemList("BLIND SPOTS", pane_id="blind")
        with Horizontal(id="lower"):
            yield ItemList("OTHER EXPLANATIONS", pane_id="others")
            yield ItemList("TIMELINE", pane_id="timeline")

    @property
    def shown_verdict(self) -> Verdict | None:
        """Return the verdict that is shown."""
        return views.chosen(self.state.diagnosis, self.shown)

    def fill(self) -> None:
        """Fill the panes."""
        diagnosis = self.state.diagnosis
        self._fill_full()
        evidence = views.evidence_items(diagnosis, self.shown, self.state.keys)
        leads = any(item.target is not None for item in evidence)
        self._fill_list(
            "evidence",
            line(("EVIDENCE", "title")),
            line(("Enter", "key"), (" goes to it", "dim")) if leads else EMPTY,
            evidence,
            "There is no verdict, so no evidence for one.",
        )
        self._fill_list(
            "steps",
            line(("WHAT TO DO", "title")),
            line(("hangtop runs none of this", "dim")),
            views.step_items(diagnosis, self.shown),
            "There is no verdict, so no next step.",
        )
        over = len(list(views.past_verdicts(diagnosis)))
        others = max(len(diagnosis.verdicts) - 1, 0) + over if diagnosis is not None else 0
        out = len(diagnosis.ruled_out) if diagnosis is not None else 0
        enter = line(("Enter", "key"), (" shows it", "dim"))
        self._fill_list(
            "others",
            line(("OTHER EXPLANATIONS  ", "title"), str(others or "none")),
            enter if others else line((f"{out} ruled out" if out else "", "dim")),
            views.other_items(diagnosis, self.shown),
            "No other explanation fits what was seen."
            if self.shown_verdict is not None
            else "There is no verdict, so no other explanation.",
        )
        self._fill_list(
            "timeline",
            line(("TIMELINE", "title")),
            EMPTY,
            views.timeline_items(diagnosis, self.hangtop.now()),
            "Nothing has stopped, as far as is known.",
        )
        blind = views.blind_items(diagnosis)
        self._fill_list(
            "blind",
            line(("BLIND SPOTS  ", "title"), str(len(blind) or "none")),
            EMPTY,
            blind,
            "Everything that was looked for could be seen.",
        )
        self._share_room()

    def _share_room(self) -> None:
        """Keep panes from scrolling while another has unused lines."""
        rows = [self.query_one(f"#{name}") for name, _, _ in _ROWS]
        lines = None
        if not self.has_class("-alone") and self.query_one("#body").size.height:
            wanted = [max(self._filled(*one) for one in panes) for _, _, panes in _ROWS]
            room = self.query_one("#body").size.height - self._full_height()
            lines = share(wanted, [weight for _, weight, _ in _ROWS], room)
        for place, row in enumerate(rows):
            row.styles.height = None if lines is None else lines[place]

    def _full_height(self) -> int:
        height = self.query_one("#full").styles.height
        return int(height.value) if height is not None else 0

    def _filled(self, name: str, part: int, whole: int) -> int:
        """Return the lines that a pane fills, with its frame, at that part of the width."""
        pane = self.query_one(f"#{name}", ItemList)
        return pane.prepare(max(self.app.size.width * part // whole - 4, 10)) + 2

    def _fill_list(
        self, name: str, title: Line, note: Line, items: Sequence[Item], none: str
    ) -> None:
        pane = self.query_one(f"#{name}", ItemList)
        pane.retitle(title, note)
        pane.set_items(items, [line((none, "dim"))])

    def _fill_full(self) -> None:
        state = self.state
        pane = self.query_one("#full", TextPane)
        diagnosis = state.diagnosis
        lines = views.full_lines(state.snapshot, state.job, diagnosis, self.shown, live=state.live)
        best = self.shown_verdict
        note = EMPTY
        if diagnosis is not None and not state.files:
            note = line(("observed ", "label"), span(diagnosis.observed_for_s))
        title = verdict_title(best)
        if best is not None and diagnosis is not None and best is not _first(diagnosis):
            title = line(title, (f"  {_place(best, diagnosis)}", "warn"))
            note = line(("Esc", "key"), (" shows the first", "dim"))
        pane.retitle(title, note)
        most = 9 if self.app.size.height >= 30 else 6
        if state.job is None:
            most = max(most, self.app.size.height // 2)
        width = max(self.app.size.width - 4, 10)
        alone = self.has_class("-alone") and not pane.has_class("-pinned")
        if self.has_class("-alone") and best is not None:
            # The pane of steps may be hidden; the first step is always in view.
            lines[1:1] = [labelled("do", step) for step in best.next_steps[:1]]
            lines = lines if alone else second_in_view(lines, width, most)
        tall = len(wrap_all(lines, width, 9))
        pane.styles.height = "1fr" if alone else max(2, min(tall, most)) + 2
        pane.set_lines(lines)

    def path(self) -> list[str]:
        """Return the cause."""
        best, diagnosis = self.shown_verdict, self.state.diagnosis
        if diagnosis is None or best is None:
            return ["verdict"]
        others = max(len(diagnosis.verdicts) - 1, 0)
        more = [f"{plural(others, 'other explanation')}"] if others else []
        return ["verdict", best.cause, *more]

    def do_back(self) -> None:
        """Go from another explanation back to the verdict first."""
        diagnosis, best = self.state.diagnosis, self.shown_verdict
        if self.zoomed or diagnosis is None or best is None or best is _first(diagnosis):
            super().do_back()
            return
        self.shown = None
        self.show()

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        """Go from evidence to the screen that shows it; show another explanation in full."""
        goal = event.item.target
        if isinstance(goal, Goal):
            self._follow(goal)
        elif event.pane.id == "others" and goal is not None:
            self.shown = goal
            self.focus_pane("evidence")
        else:
            self.hangtop.tell(_NO_GOAL.get(event.pane.id or "", "y copies it"))

    def _follow(self, goal: Goal) -> None:
        job = self.state.job
        for rank in job.members if job else ():
            if rank.rank == goal.rank:
                self.state.rank_key = rank_key(rank)
                break
        if goal.node is not None:
            self.state.node_name = goal.node
        self.hangtop.follow(goal.screen, goal.rank, goal.pane)
        if goal.pane == ENVIRONMENT:
            self.hangtop.call_later(self.hangtop.perform, ENVIRONMENT)


def _first(diagnosis: Diagnosis) -> Verdict | None:
    return diagnosis.verdicts[0] if diagnosis.verdicts else None


def _place(verdict: Verdict, diagnosis: Diagnosis) -> str:
    """Return `2 of 3` verdicts; for a verdict on an ended attempt, which attempt."""
    for past in diagnosis.past_attempts:
        if any(one is verdict for one in past.verdicts):
            return f"attempt {past.number}" if past.number is not None else "the attempt before"
    return f"{diagnosis.verdicts.index(verdict) + 1} of {len(diagnosis.verdicts)}"


_ROWS = (
    ("evidence", 6, (("evidence", 1, 1),)),
    ("middle", 4, (("steps", 3, 5), ("blind", 2, 5))),
    ("lower", 5, (("others", 1, 2), ("timeline", 1, 2))),
)
"""Rows below the verdict as in verdict.tcss: name, share of the height, and the panes with their
part of the width.
"""
_NO_GOAL = {
    "evidence": "there is no rank whose page would show more; y copies it",
    "steps": "y copies it; hangtop runs nothing of this by itself",
    "others": "ruled out by what was looked at; y copies it",
}
"""Messages where Enter leads nowhere."""
