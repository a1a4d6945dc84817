"""Which hangtop this is: in a module of its own, so that who tells it need not load the package."""

__version__ = "0.1.0"
