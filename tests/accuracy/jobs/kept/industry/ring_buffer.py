"""Audio model whose frames come out of a native ring buffer that a reader thread fills."""

import ctypes
import datetime
import os
import subprocess
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

NATIVE = r"""
#include <pthread.h>
#include <string.h>
#define SLOTS 16
#define FRAME 1024
static float slots[SLOTS][FRAME];
static int head, count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;

int ring_push(const float *frame) {
  int pushed = 0;
  pthread_mutex_lock(&mutex);
  if (count < SLOTS) {
    memcpy(slots[(head + count++) % SLOTS], frame, sizeof slots[0]);
    pthread_cond_signal(&filled);
    pushed = 1;
  }
  pthread_mutex_unlock(&mutex);
  return pushed;
}

void ring_pop(float *frame) {
  pthread_mutex_lock(&mutex);
  while (!count) pthread_cond_wait(&filled, &mutex);
  memcpy(frame, slots[head], sizeof slots[0]);
  head = (head + 1) % SLOTS;
  count--;
  pthread_mutex_unlock(&mutex);
}

int ring_size(void) { return count; }
"""
FRAME = 1024


def build(folder: Path) -> Path:
    """Compile the extension on the first rank of the node."""
    library = folder / "_ringbuffer.so"
    if os.environ["LOCAL_RANK"] == "0":
        source = folder / "_ringbuffer.c"
        source.write_text(NATIVE)
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True
        )
    dist.barrier()
    return library


class FrameSource:
    """Reads recordings in a thread of its own and hands frames over through the extension."""

    def __init__(self, library: Path, rank: int) -> None:
        self.native = ctypes.PyDLL(str(library))
        self.rank = rank
        self.thread = threading.Thread(
            target=self.read_recordings, name="frame-reader", daemon=True
        )

    def start(self) -> None:
        self.thread.start()
        while self.native.ring_size() < 12:
            time.sleep(0.01)

    def open_recording(self, number: int) -> None:
        """Most are in the cache; one that is not takes a while to come from the archive."""
        cold = self.rank == 2 and number == 9
        time.sleep(6.0 if cold else 0.002)

    def read_recordings(self) -> None:
        number = 0
        while True:
            number += 1
            self.open_recording(number)
            for start in range(4):
                frame = torch.sin(torch.arange(FRAME) * (0.01 * (number + start)))
                while not self.native.ring_push(ctypes.c_void_p(frame.data_ptr())):
                    time.sleep(0.01)

    def batch(self, size: int) -> torch.Tensor:
        frames = torch.empty(size, FRAME)
        for row in frames:
            self.native.ring_pop(ctypes.c_void_p(row.data_ptr()))
        return frames


def train(source: FrameSource, rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(FRAME, 32), nn.Tanh(), nn.Linear(32, FRAME))
    )
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, 100_000):
        time.sleep(0.25)  # augmentation on the accelerator
        frames = source.batch(4)
        loss = (model(frames) - frames).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    source = FrameSource(build(Path(os.environ["OUT_DIR"])), dist.get_rank())
    source.start()
    train(source, dist.get_rank())


if __name__ == "__main__":
    main()
