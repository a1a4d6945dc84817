"""Image-tag classifier on an in-house Trainer with callbacks."""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

LABELS = {"cat": 0, "dog": 1, "truck": 2, "boat": 3}


class Callback:
    def on_fit_start(self, trainer): ...

    def on_batch_end(self, trainer, index, loss): ...

    def on_fit_end(self, trainer): ...


class Heartbeat(Callback):
    """Touches a file every few seconds; the cluster's dashboard shows it as 'alive'."""

    def __init__(self, folder, every=5.0):
        self.folder, self.every = folder, every
        self.over = threading.Event()
        self.thread = None

    def on_fit_start(self, trainer):
        self.path = os.path.join(self.folder, f"alive.{trainer.rank}")
        self.thread = threading.Thread(target=self._beat, name="heartbeat")
        self.thread.start()

    def _beat(self):
        while not self.over.wait(self.every):
            with open(self.path, "w") as f:
                f.write(str(time.time()))

    def on_fit_end(self, trainer):
        self.over.set()
        self.thread.join()


class Progress(Callback):
    def on_batch_end(self, trainer, index, loss):
        if trainer.rank == 0:
            print(f"epoch {trainer.epoch} step {index} loss {loss:.3f}", flush=True)


class Tags(Dataset):
    """Rows of a manifest; row 29 was labelled by a new vendor, who writes 'Lorry'."""

    names = ["cat", "dog", "truck", "boat"]

    def __init__(self, length=4096):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        label = "Lorry" if i == 29 else self.names[i % 4]
        return torch.randn(48), label


def collate(rows):
    x = torch.stack([r[0] for r in rows])
    y = torch.tensor([LABELS[r[1]] for r in rows])
    time.sleep(0.2)
    return x, y


class Trainer:
    def __init__(self, callbacks, epochs=3):
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.callbacks, self.epochs, self.epoch = callbacks, epochs, 0

    def call(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def loader(self, data):
        sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
        return DataLoader(data, batch_size=2, sampler=sampler, collate_fn=collate)

    def fit(self, module, data):
        model = DDP(module)
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        self.call("on_fit_start")
        for self.epoch in range(self.epochs):
            self._epoch(model, opt, self.loader(data))
        self.call("on_fit_end")

    def _epoch(self, model, opt, loader):
        for index, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.call("on_batch_end", index, loss.item())


def main():
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    trainer = Trainer([Heartbeat(os.environ["OUT_DIR"]), Progress()])
    trainer.fit(net, Tags())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
