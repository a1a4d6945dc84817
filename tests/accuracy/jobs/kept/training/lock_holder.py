"""lock_holder.py LOCK FOLDER: a build of an earlier job that never ended and holds LOCK."""

import fcntl
import os
import sys
import time

held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
if os.fork():
    os._exit(0)
os.setsid()
for _ in range(600):
    if not os.path.isdir(sys.argv[2]):
        break
    time.sleep(1)
