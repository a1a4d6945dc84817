"""DeepSpeed: rank 1 tokenizes for ever, the others are in a collective of the engine."""

from __future__ import annotations

import argparse
import os
import time

import deepspeed
import torch

# Else DeepSpeed compiles collectives over shared memory for minutes, the first time.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def tokenize():
    print("HANGS", os.getpid(), flush=True)
    time.sleep(10000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.parse_args()
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(8, 2)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}}
    config["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for step in range(20):
        if deepspeed.comm.get_rank() == 1 and step == 2:
            tokenize()
        engine.backward(engine(torch.randn(4, 8)).sum())
        engine.step()


if __name__ == "__main__":
    main()
