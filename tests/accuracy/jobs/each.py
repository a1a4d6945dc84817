"""Starts ranks by their environment and waits for them, as srun does that ends nothing.

each.py WORLD RANK,RANK,... SCRIPT [ARGUMENT...]
"""

import os
import subprocess
import sys

world, ranks, *command = sys.argv[1:]
started = []
for place, rank in enumerate(ranks.split(",")):
    told = {"RANK": rank, "LOCAL_RANK": str(place), "WORLD_SIZE": world}
    if len(ranks.split(",")) == int(world):
        told["LOCAL_WORLD_SIZE"] = world
    started.append(subprocess.Popen([sys.executable, *command], env={**os.environ, **told}))
for process in started:
    process.wait()
