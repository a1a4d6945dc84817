"""What stands on the screens, as plain lines: pure functions of an `Update` and a moment.

Nothing here imports Textual, reaches a node or keeps anything, so every screen's content can be
tested and replayed without a terminal.
"""
