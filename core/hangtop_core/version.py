"""The version of hangtop, in a module of its own that loads without the package."""

__version__ = "0.1.0"
