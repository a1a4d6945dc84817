"""An experiment hub somebody left running: it has a TCPStore of its own.  hub.py ADDRESS PORT"""

import sys
import time

from torch.distributed import TCPStore

store = TCPStore(sys.argv[1], int(sys.argv[2]), None, True, wait_for_workers=False)
store.set("hub/experiments", "[]")
print("hub: ready", flush=True)
while True:
    time.sleep(3)
    store.set("hub/beat", str(time.time()))
