"""What is shown: the page, the line that is told on it, and what a key does there."""

from __future__ import annotations

from hangtop.keys.actions import key_name, page_names
from hangtop.keys.possible import needs_live
from hangtop.screens.base_app import BaseApp
from hangtop.screens.dialogs import Dialog
from hangtop.screens.page import Page


class Showing(BaseApp):
    """The app with its pages."""

    _told_at = 0.0

    @property
    def page(self) -> Page | None:
        """The page, also while something is open over it."""
        return next((one for one in reversed(self.screen_stack) if isinstance(one, Page)), None)

    @property
    def _page(self) -> Page:
        """The page that an action is done on."""
        if (page := self.page) is None:
            raise RuntimeError("there is no page")
        return page

    def show(self) -> None:
        """Bring the page up to date, and what is open over it."""
        if (page := self.page) is None:
            return  # not yet, or not any more
        page.show()
        self.renew_dialog()

    def renew_dialog(self) -> None:
        """Bring what is open over the page up to date."""
        if isinstance(self.screen, Dialog):
            self.screen.renew()

    def tell(self, text: str, role: str = "") -> None:
        """Show one line for some seconds."""
        self.told = (text, role)
        self._told_at = self.real_now()
        if self.is_running and self.page is not None:
            self.page.show_bars()

    # Keys

    def reason(self, name: str, screen: str) -> str | None:
        """Return why an action is not possible on a screen now."""
        return self.keymap.by_id[name].possible(self.state.situation(screen))

    def action_press(self, key: str) -> None:
        """Do the action of a key on this page, or show why not."""
        page = self.screen
        if not isinstance(page, Page) or not page.is_mounted:
            return
        if self.told[0]:
            self.tell("")  # the message was about the key before
        action = self.keymap.find(key, page.NAME)
        if action is not None:
            self.perform(action.id)
            return
        other = self.keymap.elsewhere(key)
        if other is not None:
            where = f"{key_name(key)} works on {page_names(other.screens, 2)}: {other.help}"
            never = needs_live(self.state.situation(page.NAME)) if other.live else None
            self.tell(never or where, "dim")

    def perform(self, name: str) -> None:
        """Do an action, or show why it is not possible."""
        page = self.screen
        if not isinstance(page, Page):
            return
        reason = self.reason(name, page.NAME)
        if reason is not None:
            self.tell(reason, "warn")
            return
        handler = getattr(page, f"do_{name}", None) or getattr(self, f"do_{name}")
        handler()
