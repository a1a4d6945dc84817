"""Screens: they lay panes out and fill them from views; they reach no node."""
