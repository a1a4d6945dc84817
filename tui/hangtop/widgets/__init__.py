"""Widgets that paint lines; the content of the lines comes from `hangtop.views`."""
