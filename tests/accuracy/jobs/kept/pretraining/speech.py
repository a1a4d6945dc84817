"""Speech model: utterances are decoded by a background thread, so that the trainer never waits."""

import io
import queue
import struct
import threading
import wave
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SAMPLES = 1600


def synthesise(seed: int, damaged: bool) -> bytes:
    """An utterance as it lies in the archive."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(
            struct.pack(
                f"<{SAMPLES}h", *((seed * 31 + i * i) % 2000 - 1000 for i in range(SAMPLES))
            )
        )
    return out.getvalue()[: 20 if damaged else None]


class Archive:
    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world

    def __iter__(self):
        for number in range(self.rank, 100_000, self.world):
            yield number, synthesise(number, damaged=number == 101)


def decode(blob: bytes) -> torch.Tensor:
    with wave.open(io.BytesIO(blob)) as file:
        raw = bytearray(file.readframes(file.getnframes()))
    return torch.frombuffer(raw, dtype=torch.int16).float() / 32768


class Prefetcher:
    """Keeps a few batches ready."""

    def __init__(self, archive: Archive, batch: int, depth: int = 4):
        self.archive, self.batch = archive, batch
        self.ready: queue.Queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self.thread.start()

    def _fill(self) -> None:
        waves, targets = [], []
        for number, blob in self.archive:
            waves.append(decode(blob))
            targets.append(number % 5)
            if len(waves) == self.batch:
                self.ready.put((torch.stack(waves), torch.tensor(targets)))
                waves, targets = [], []

    def __iter__(self):
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.ready.get()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 40, stride=20)
        self.out = nn.Linear(16, 5)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(waves.unsqueeze(1)).relu().mean(-1))


class Recipe:
    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = DDP(Encoder())
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = Prefetcher(Archive(self.rank, self.world), batch=4)

    def fit_batch(self, waves: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(waves), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self) -> None:
        for number, (waves, targets) in enumerate(self.batches):
            loss = self.fit_batch(waves, targets)
            dist.all_reduce(loss)
            if self.rank == 0:
                print(f"batch {number} loss {loss.item() / self.world:.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    Recipe().run()
