"""The terminal and drawing: styled text, themes, panes, the clipboard, the pager."""
