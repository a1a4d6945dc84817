"""Screen 5: the verdict with its evidence, what to do, other explanations, blind spots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Horizontal

from hangtop.screens.page import Page
from hangtop.spans import EMPTY, labelled, line, second_in_view, wrap_all
from hangtop.views import verdict as views
from hangtop.views.common import rank_key, span
from hangtop.views.overview import verdict_title
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget


class VerdictPage(Page):
    """Verdict, evidence, steps, others, blind spots."""

    CSS_PATH = "verdict.tcss"
    NAME = "verdict"
    PANES = ("evidence", "steps", "others", "blind", "full")
    PINNED = "full"

    def compose_body(self) -> Iterable[Widget]:
        """The panes."""
        flat = self.hangtop.ascii
        yield TextPane("VERDICT", pane_id="full", flat=flat)
        yield ItemList("EVIDENCE", pane_id="evidence", flat=flat)
        yield ItemList("WHAT TO DO", pane_id="steps", flat=flat)
        with Horizontal(id="lower"):
            yield TextPane("OTHER EXPLANATIONS", pane_id="others", flat=flat)
            yield ItemList("BLIND SPOTS", pane_id="blind", flat=flat)

    def fill(self) -> None:
        """Fill the panes."""
        state = self.state
        diagnosis = state.diagnosis
        self._fill_full()
        evidence = views.evidence_items(diagnosis)
        pane = self.query_one("#evidence", ItemList)
        pane.retitle(line(("EVIDENCE", "title")), line(("Enter", "key"), (" goes to it", "dim")))
        pane.set_items(evidence, [line(("There is no verdict, so no evidence for one.", "dim"))])
        pane = self.query_one("#steps", ItemList)
        pane.retitle(line(("WHAT TO DO", "title")), line(("hangtop runs none of this", "dim")))
        steps = views.step_items(diagnosis)
        pane.set_items(steps, [line(("There is no verdict, so no next step.", "dim"))])
        self.query_one("#others", TextPane).set_lines(views.other_lines(diagnosis))
        blind = views.blind_items(diagnosis)
        pane = self.query_one("#blind", ItemList)
        pane.retitle(line(("BLIND SPOTS  ", "title"), str(len(blind) or "none")))
        pane.set_items(blind, [line(("Everything that was looked for could be seen.", "dim"))])

    def _fill_full(self) -> None:
        state = self.state
        pane = self.query_one("#full", TextPane)
        diagnosis = state.diagnosis
        lines = views.full_lines(state.snapshot, state.job, diagnosis)
        note = EMPTY
        if diagnosis is not None and not state.files:
            note = line(("observed ", "label"), span(diagnosis.observed_for_s))
        pane.retitle(verdict_title(diagnosis), note)
        most = 9 if self.app.size.height >= 30 else 6
        if state.job is None:
            most = max(most, self.app.size.height // 2)
        width = max(self.app.size.width - 4, 10)
        alone = self.has_class("-alone") and not pane.has_class("-pinned")
        if self.has_class("-alone") and diagnosis is not None and diagnosis.verdicts:
            # The pane of steps is another one; the first of them is always in view.
            lines[1:1] = [labelled("do", step) for step in diagnosis.verdicts[0].next_steps[:1]]
            lines = lines if alone else second_in_view(lines, width, most)
        tall = len(wrap_all(lines, width, 9))
        pane.styles.height = "1fr" if alone else max(2, min(tall, most)) + 2
        pane.set_lines(lines)

    def path(self) -> list[str]:
        """The cause."""
        diagnosis = self.state.diagnosis
        if diagnosis is None or not diagnosis.verdicts:
            return ["verdict"]
        others = len(diagnosis.verdicts) - 1
        more = [f"{plural(others, 'other explanation')}"] if others else []
        return ["verdict", diagnosis.verdicts[0].cause, *more]

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        """Evidence leads to the screen that shows it; a step is shown whole."""
        if event.item.target is None:
            evidence = event.pane.id == "evidence"
            self.hangtop.tell(
                "there is no rank whose page would show more; y copies it"
                if evidence
                else "y copies it; hangtop runs nothing of this by itself"
            )
            return
        screen, number = event.item.target
        job = self.state.job
        for rank in job.ranks if job else ():
            if rank.rank == number:
                self.state.rank_key = rank_key(rank)
                break
        self.hangtop.go(screen, number)
