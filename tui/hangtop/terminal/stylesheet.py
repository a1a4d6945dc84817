"""The style sheet of the app, parsed once."""

from __future__ import annotations

from textual.css.stylesheet import Stylesheet


class KeptStylesheet(Stylesheet):
    """Parses what is new in it, where Textual's own (8.2) parses all of it again.

    It does so three times when a page is opened for the first time, and three times at the start,
    which took half of the time to open a page. What a rule comes to depends on its text and on the
    variables of the theme alone.
    """

    def set_variables(self, variables: dict[str, str]) -> None:
        """Take the variables of a theme; if they are others, nothing parsed so far holds."""
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        """Parse what was not parsed with these variables."""
        self.parse()
