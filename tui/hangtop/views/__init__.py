"""The content of the screens as plain lines: pure functions of an `Update` and a time.

Nothing here imports Textual, reaches a node or keeps state, so the content of every screen can be
tested and replayed without a terminal.
"""
