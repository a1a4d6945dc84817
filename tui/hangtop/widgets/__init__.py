"""Widgets that paint lines; what stands in the lines comes from `hangtop.views`."""
