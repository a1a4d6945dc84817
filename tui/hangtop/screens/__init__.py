"""Screens: lay out panes and fill them from views; they never reach a node."""
