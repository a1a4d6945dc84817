"""The probe: one process on every node, over its own stdin and stdout.

It reports and never judges. Standard library only, Python 3.8 or later: everything it wants to
know is a file below /proc, and psutil has neither wait channels, system calls, scheduler clocks
nor locks, so it would only be a second way to read the rest. It imports nothing else of hangtop.
"""
