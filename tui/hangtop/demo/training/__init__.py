"""A small training program with one way to hang per scenario.

Copied into the demo's own directory and started there, so that its stacks look like those of a
user's repository. This is the only code of hangtop that imports torch.
"""
