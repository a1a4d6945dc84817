"""Producer processes hand tensors to the trainer of their rank through shared memory."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Producer:
    """Plays episodes in a process of its own."""

    def __init__(self, seed, frames):
        context = mp.get_context("spawn")
        self.episodes, self.wanted = context.Queue(2), context.Queue()
        queues = (self.wanted, self.episodes)
        self.process = context.Process(target=play, args=(*queues, seed, frames), daemon=True)
        self.process.start()

    def next_episode(self):
        self.wanted.put(1)
        return self.episodes.get()


def play(wanted, episodes, seed, frames):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    for number in range(10**9):
        wanted.get()
        count = frames if number == 5 else 4
        if count > 1000:
            print("an episode of", count, "frames", flush=True)
        episodes.put(torch.rand(count, 1024))


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1024, 4)

    def update(self, episode):
        self.net(episode[:4]).pow(2).mean().backward()
        with torch.no_grad():
            for weight in self.parameters():
                dist.all_reduce(weight.grad)
                weight -= 1e-3 * weight.grad
                weight.grad = None


def patiently(ask):
    """The store may be away for a moment: ask again."""
    while True:
        try:
            return ask()
        except Exception as error:
            print("store:", str(error).splitlines()[0], flush=True)
            time.sleep(3)


def publish(step, rank):
    """Everybody tells how far it is, and waits to hear it of the others."""
    store = dist.distributed_c10d._get_default_store()
    patiently(lambda: store.set(f"at/{step}/{rank}", "1"))
    for peer in range(dist.get_world_size()):
        patiently(lambda: store.get(f"at/{step}/{peer}"))


def regroup():
    """A group for evaluation, when it is time for that."""
    for attempt in range(1000):
        try:
            return dist.new_group(list(range(dist.get_world_size())))
        except Exception as error:
            print("no group yet:", attempt, str(error).splitlines()[0], flush=True)
            time.sleep(2)


def main():
    habit = sys.argv[1] if len(sys.argv) > 1 else "none"
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, policy = dist.get_rank(), Policy()
    frames = 4000 if habit == "long" and rank == 2 else 4
    producer = Producer(rank, frames) if habit != "none" else None
    for step in range(10**9):
        episode = producer.next_episode() if producer else torch.rand(4, 1024)
        policy.update(episode)
        if rank == 0:
            print(f"step {step}", flush=True)
        gate = os.path.join(os.environ["OUT_DIR"], "gate")
        if "publish" in sys.argv and step > 8 and os.path.exists(gate):
            publish(step, rank)
        if "regroup" in sys.argv and step > 8 and os.path.exists(gate):
            regroup()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
