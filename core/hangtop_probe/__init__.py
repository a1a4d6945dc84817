"""The probe: one process on every node, over its own stdin and stdout.

It reports and never judges. Standard library plus psutil, Python 3.8 or later; it imports
nothing else of hangtop.
"""
