"""A launcher of our own: it starts the ranks, and marks every line of theirs with its rank.

tail.py WORLD; as tail.py rank it is one of the ranks, which learns letters.
"""

import logging
import os
import subprocess
import sys
import threading

WORLD = int(sys.argv[1]) if sys.argv[1] != "rank" else 0


def follow(rank, process):
    """Every line of one rank, as text."""
    with open(process.stdout.fileno(), encoding="utf-8", closefd=False) as lines:
        for line in lines:
            if " slope " not in line:
                print(f"[{rank}] {line}", end="", flush=True)


def launch():
    ranks, followers = [], []
    for rank in range(WORLD):
        told = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
        process = subprocess.Popen(
            [sys.executable, __file__, "rank"],
            env={**os.environ, **told, "LOCAL_WORLD_SIZE": str(WORLD)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        follower = threading.Thread(target=follow, args=(rank, process), name=f"tail-{rank}")
        follower.start()
        ranks.append(process)
        followers.append(follower)
    codes = [process.wait() for process in ranks]
    for follower in followers:
        follower.join()
    return max(codes)


class Letters:
    """Guess the next letter from the two before it."""

    def __init__(self, rank, torch):
        self.torch, self.rank = torch, rank
        self.table = torch.zeros(256, 256, requires_grad=True)
        names = {0: "Andrea", 1: "Renée", 2: "Björn", 3: "Zoë"}
        # One of the files was written on a machine with another encoding.
        self.text = names[rank].encode("latin-1" if rank == 1 else "utf-8") * 8

    def loss(self):
        ids = self.torch.tensor(list(self.text))
        return self.torch.nn.functional.cross_entropy(self.table[ids[:-1]], ids[1:])

    def show(self, log):
        """What the model is fed, as bytes: printing should not care for encodings."""
        log.info("an example follows")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"example: " + self.text + b"\n")
        sys.stdout.buffer.flush()


def train():
    import torch
    import torch.distributed as dist

    logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(name)s %(message)s")
    log = logging.getLogger("letters")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = Letters(rank, torch)
    for step in range(10**9):
        loss = model.loss()
        (slope,) = torch.autograd.grad(loss, model.table)
        dist.all_reduce(slope)
        with torch.no_grad():
            model.table -= 0.5 * slope / dist.get_world_size()
        log.info("step %d loss %.4f", step, loss.item())
        if step == 6:
            model.show(log)
        if step % 5 == 0:
            log.debug("slope %s", slope[100:140, :60].tolist())
        dist.barrier()


if __name__ == "__main__":
    sys.exit(launch() if WORLD else train())
