"""Actions that pause a rank: taking its core, opening a prompt in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hangtop.keys.asking import Asking
from hangtop.screens.dialogs import Confirm, Reader
from hangtop.terminal import pager
from hangtop.terminal.spans import line
from hangtop.views.common import rank_key
from hangtop_core.tools.debugging import COST, debugging, outcome

if TYPE_CHECKING:
    from hangtop.source.messages import Answered
    from hangtop_core.cores.take import Cost
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.tools.debugging import Debugging


class Stopping(Asking):
    """Mixin of the app; each action asks for confirmation every time, stating its cost."""

    def do_core(self) -> None:
        """Ask what a core of the chosen rank costs; the answer goes to `core_answered`."""
        rank = self._app.state.rank
        if rank is not None:
            self._app.requests.core_cost(rank)

    def core_answered(self, answer: Answered) -> None:
        """Ask whether to take the core at its cost, unless another rank has been chosen by now."""
        rank = self._app.state.rank
        if answer.kind != "core cost" or answer.error is not None or rank is None:
            return
        cost: Cost = answer.result
        if answer.about != rank_key(rank):
            return
        if not cost.fits:
            self._app.tell(f"there is too little room for a core in {cost.dir}", "warn")
            return
        lines = [
            line((f"gdb -p {rank.process.pid}: generate-core-file", "code")),
            line(cost.description),
            line(f"Afterwards `hangtop core` reads it, on {rank.node}."),
        ]
        self._app.push_screen(
            Confirm(f"TAKE A CORE OF {rank.name.upper()}", lines), partial(self._take_core, rank)
        )

    def _take_core(self, rank: Rank, yes: bool | None) -> None:
        if yes:
            self._app.requests.core(rank)
        else:
            self._app.tell("no core was taken")

    def do_debug(self) -> None:
        """Give the terminal to a pdb prompt in the chosen rank, or show why there is none."""
        state = self._app.state
        rank, snapshot = state.rank, state.snapshot
        if rank is None or snapshot is None:
            return
        plan = debugging(snapshot, rank, state.node_on(self._page.NAME))
        title = f"A PROMPT IN {rank.name.upper()}"
        steps = [line(("- ", "dim"), (step, "code")) for step in plan.steps]
        if plan.why is not None:
            lines = [line(f"Now {plan.doing}."), line(f"No prompt: {plan.why}."), *steps]
            self._app.push_screen(Reader(title, lines))
            return
        lines = [line((plan.shown, "code")), line(f"Now {plan.doing}. {COST}.")]
        if plan.warning is not None:
            lines += [line((f"{plan.warning}. Instead:", "warn")), *steps]
        self._app.push_screen(Confirm(title, lines), partial(self._prompt, rank, plan))

    def _prompt(self, rank: Rank, plan: Debugging, yes: bool | None) -> None:
        if not yes:
            self._app.tell("not run")
            return
        ended = self._app.source.note_command(rank.node, plan.shown)
        where = f"a prompt in {rank.name}"
        wrong = self._outside(
            lambda: pager.prompt(plan.argv, plan.shown, where, lambda status: outcome(status, plan))
        )
        ended(wrong or "left")
        if wrong is None:
            # The newest stack may be one of the prompt, which the rank has left.
            self._app.requests.sample([rank])
