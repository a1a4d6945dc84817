"""The core of hangtop: attach, store, analysis and verdict, without a screen."""

__version__ = "0.1.0"
