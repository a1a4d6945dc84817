"""PPO: rank 0 owns the generation engine, a process of its own; all ranks learn from what it made."""

import multiprocessing as mp
import sys
import time
from datetime import timedelta

PROMPTS = 240


def engine(pipe):
    """Decodes one prompt after the other. No torch here: it stands for a serving engine."""
    import random

    while (prompt := pipe.recv()) is not None:
        tokens, state = [], hash(prompt)
        until = time.monotonic() + random.uniform(1.5, 3.0)
        while time.monotonic() < until:
            for _ in range(40_000):
                state = (state * 1103515245 + 12345) % 2**31
            tokens.append(state % 32000)
            time.sleep(0.02)
        pipe.send(tokens)


class Generator:
    def __init__(self):
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=engine, args=(other,), daemon=True, name="engine")
        self.process.start()

    def generate(self, prompts):
        out = []
        for number, prompt in enumerate(prompts):
            self.pipe.send(prompt)
            out.append(self.pipe.recv())
            if number % 10 == 9:
                print(f"generated {number + 1}/{len(prompts)}", flush=True)
        return out


def main():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    generator = Generator() if rank == 0 else None
    value = torch.nn.Linear(16, 1)
    for iteration in range(50):
        box = [None]
        if rank == 0:
            print(f"iteration {iteration}: generating", flush=True)
            count = 4 if iteration == 0 else PROMPTS
            box[0] = generator.generate([f"prompt {iteration}/{i}" for i in range(count)])
        dist.broadcast_object_list(box, src=0)
        for tokens in box[0]:
            x = torch.tensor((tokens + [0] * 16)[:16]).float() / 32000
            value(x).square().sum().backward()
            for p in value.parameters():
                dist.all_reduce(p.grad)
                p.grad = None
        if rank == 0:
            print(f"iteration {iteration}: learned", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
